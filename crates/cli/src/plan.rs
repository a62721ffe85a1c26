//! `calypte plan`: what would be where, and how fast.

use std::time::{SystemTime, UNIX_EPOCH};

use calypte_engine::budget::Budget;
use calypte_engine::checkpoint::{Catalog, ExpertLayer};
use calypte_engine::plan::{DiskFigure, Plan, Prediction, Probe, plan as make_plan};
use calypte_engine::size::human;
use serde_json::{Value, json};

use crate::args::PlanArgs;
use crate::exit::Failure;
use crate::loading::{context_default, headers};
use crate::output::{Out, grouped, short, table, three_digits};
use crate::progress::Progress;

/// Makes the plan and prints it; a plan that cannot work is a failure after that.
pub fn plan(args: &PlanArgs) -> Result<(), Failure> {
    let catalog = headers(args.model.as_deref())?;
    let options = args.engine.options(context_default(&catalog));
    let context = options.context;
    let mut progress = Progress::new();
    progress.busy("Measuring");
    let probe = match (args.no_probe, args.probe) {
        (true, _) => Probe::Never,
        (false, false) => Probe::Once,
        (false, true) => Probe::Anew,
    };
    let made = make_plan(&catalog, &options, probe);
    progress.clear();
    let plan = made?;
    let text = match args.json {
        true => format!("{}\n", to_json(&catalog, &plan, context)),
        false => to_text(&catalog, &plan, context),
    };
    Out::new().text(&text)?;
    plan.refusal.map_or(Ok(()), |reason| Err(Failure::Budget(reason)))
}

type Rows = Vec<(String, String)>;

fn row(rows: &mut Rows, label: &str, value: String) {
    rows.push((label.to_string(), value));
}

fn heading(rows: &mut Rows, text: &str) {
    if !rows.is_empty() {
        row(rows, "", String::new());
    }
    row(rows, "", text.to_string());
}

fn to_text(catalog: &Catalog, plan: &Plan, context: usize) -> String {
    let mut rows = Rows::new();
    model_rows(&mut rows, catalog, plan);
    budget_rows(&mut rows, &plan.budget, context, plan.refusal.is_some());
    share_rows(&mut rows, catalog, plan);
    speed_rows(&mut rows, plan);
    table(&rows)
}

fn model_rows(rows: &mut Rows, catalog: &Catalog, plan: &Plan) {
    let arch = &catalog.arch;
    heading(rows, &format!("{} ({})", catalog.name, catalog.source.display()));
    row(rows, "architecture", format!("{}, {}", arch.family, catalog.format));
    let p = &plan.parameters;
    let counts = format!("{} total, {} active per token", short(p.total), short(p.active));
    row(rows, "parameters", counts);
    if let Some(moe) = &arch.moe {
        let (low, high) = plan.expert_bytes;
        let bytes = if low == high { human(low) } else { format!("{} to {}", human(low), human(high)) };
        row(rows, "bytes per expert", bytes);
        let layers = catalog.moe_layers();
        row(rows, "experts", format!("{} in each of {layers} layers, {} per token", moe.experts, moe.top_k));
        row(rows, "all experts", human(trunk_expert_bytes(catalog)));
        let cold = format!("{} (layers × experts per token × bytes per expert)", human(plan.cold_read_bytes));
        row(rows, "cold read per token", cold);
    }
    row(rows, "keys and values", format!("{} per token", human(plan.budget.kv_bytes_per_token)));
    if arch.context_max > 0 {
        row(rows, "made for", format!("{} positions", grouped(arch.context_max as u64)));
    }
}

fn budget_rows(rows: &mut Rows, b: &Budget, context: usize, refused: bool) {
    let what = if refused { "The least memory that works" } else { "Memory" };
    heading(rows, &format!("{what}: {}", human(b.total_bytes())));
    row(rows, "resident weights", human(b.resident_bytes));
    row(rows, "keys and values", format!("{} for {} positions", human(b.kv_bytes), grouped(context as u64)));
    row(rows, "working memory", human(b.working_bytes));
    row(rows, "program", human(b.program_bytes));
    if b.expert_bytes_whole > 0 {
        let share = b.expert_bytes as f64 / b.expert_bytes_whole as f64 * 100.0;
        let cache = format!(
            "{}, {share:.0} % of {} (the least is {})",
            human(b.expert_bytes),
            human(b.expert_bytes_whole),
            human(b.expert_bytes_floor)
        );
        row(rows, "expert cache", cache);
        if !refused {
            row(rows, "decided by", b.reason.clone());
        }
    }
}

/// Layers with the same share are told together.
fn share_rows(rows: &mut Rows, catalog: &Catalog, plan: &Plan) {
    let layers: Vec<_> =
        catalog.trunk_experts().map(|e| (e.layer, e.extents.len())).zip(&plan.shares).collect();
    if layers.is_empty() {
        return;
    }
    heading(rows, "Experts that the cache holds");
    for run in layers.chunk_by(|a, b| a.0.1 == b.0.1 && a.1 == b.1) {
        if let (Some(((first, experts), share)), Some(((last, _), _))) = (run.first(), run.last()) {
            let label = match first == last {
                true => format!("layer {first}"),
                false => format!("layers {first} to {last}"),
            };
            let value = format!(
                "{} of {experts} each; never below {}, at most {}",
                share.slots_even_share, share.slots_floor, share.slots_max
            );
            row(rows, &label, value);
        }
    }
}

fn speed_rows(rows: &mut Rows, plan: &Plan) {
    heading(rows, "Speed");
    let disk = match &plan.disk {
        Some(d) => {
            let why = d.fallback_reason.as_ref().map_or(String::new(), |r| format!(" ({r})"));
            format!("{}/s by {}{why}", human(d.bytes_per_s as u64), d.setting.mode)
        }
        None if has_experts(plan) => "not measured".to_string(),
        None => "not needed: there are no experts to read".to_string(),
    };
    row(rows, "disk", disk);
    if let Some(d) = &plan.disk {
        row(rows, "disk queue", queue(d));
    }
    let compute = human(plan.compute_bytes_per_s as u64);
    let compute = format!("{compute}/s of weights by {}, measured", plan.isa.name());
    row(rows, "compute", compute);
    row(rows, "weights per token", human(plan.active_bytes));
    if has_experts(plan) {
        let evenly = "once the cache has filled, if every expert were as likely; real routing is kinder";
        row(rows, "cold", predicted(cold(plan), "with an empty cache"));
        row(rows, "warm", predicted(warm(plan), evenly));
    } else {
        row(rows, "predicted", predicted(Some(&plan.warm), "all of the model is in memory"));
    }
}

/// How the disk is read, and since when that is known.
fn queue(d: &DiskFigure) -> String {
    let (depth, bytes) = (d.setting.depth, human(d.setting.segment_bytes as u64));
    let reads = if depth == 1 { "1 read at a time".to_string() } else { format!("{depth} reads at once") };
    let known = match d.remembered_unix_s {
        Some(then) => format!("remembered from {} (--probe measures anew)", ago(then)),
        None => format!("measured now over {} experts", grouped(d.reads)),
    };
    format!("{reads} of at most {bytes}, {known}")
}

/// How long a moment is past, in the largest unit of which there are at least two.
fn ago(unix_s: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let seconds = now.saturating_sub(unix_s);
    match seconds {
        0..120 => "just now".to_string(),
        120..7200 => format!("{} minutes ago", seconds / 60),
        7200..172_800 => format!("{} hours ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

fn predicted(prediction: Option<&Prediction>, when: &str) -> String {
    match prediction {
        Some(p) => format!("{} tok/s, {} binds ({when})", three_digits(p.tok_s), p.binds),
        None => format!("unknown, as the disk was not measured ({when})"),
    }
}

/// Bytes of the experts that may be read; those of multi-token prediction are not.
fn trunk_expert_bytes(catalog: &Catalog) -> u64 {
    let bytes = |e: &ExpertLayer| e.expert_bytes().saturating_mul(e.extents.len() as u64);
    catalog.trunk_experts().map(bytes).sum()
}

fn has_experts(plan: &Plan) -> bool {
    plan.budget.expert_bytes_whole > 0
}

/// A prediction that needs the disk's speed is none without it.
fn cold(plan: &Plan) -> Option<&Prediction> {
    (plan.disk.is_some() || !has_experts(plan)).then_some(&plan.cold)
}

fn warm(plan: &Plan) -> Option<&Prediction> {
    let reads = plan.budget.expert_bytes < plan.budget.expert_bytes_whole;
    (plan.disk.is_some() || !reads).then_some(&plan.warm)
}

fn to_json(catalog: &Catalog, plan: &Plan, context: usize) -> Value {
    let moe = catalog.arch.moe.as_ref();
    let b = &plan.budget;
    let shares = catalog.trunk_experts().zip(&plan.shares).map(|(e, s)| {
        json!({
            "layer": e.layer,
            "experts": e.extents.len(),
            "expert_bytes": e.expert_bytes(),
            "slots_floor": s.slots_floor,
            "slots_even_share": s.slots_even_share,
            "slots_max": s.slots_max,
        })
    });
    let speed = |p: Option<&Prediction>| p.map(|p| json!({ "tok_s": p.tok_s, "binds": p.binds }));
    json!({
        "model": catalog.source.display().to_string(),
        "name": catalog.name,
        "architecture": catalog.arch.family,
        "format": catalog.format,
        "parameters_total": plan.parameters.total,
        "parameters_active": plan.parameters.active,
        "resident_bytes": b.resident_bytes,
        "expert_bytes_total": trunk_expert_bytes(catalog),
        "expert_bytes_min": plan.expert_bytes.0,
        "expert_bytes_max": plan.expert_bytes.1,
        "moe_layers": catalog.moe_layers(),
        "experts_per_layer": moe.map_or(0, |m| m.experts),
        "experts_per_token": moe.map_or(0, |m| m.top_k),
        "kv_bytes_per_token": b.kv_bytes_per_token,
        "cold_read_bytes_per_token": plan.cold_read_bytes,
        "weight_bytes_per_token": plan.active_bytes,
        "context": context,
        "budget": {
            "total_bytes": b.total_bytes(),
            "resident_bytes": b.resident_bytes,
            "kv_bytes": b.kv_bytes,
            "working_bytes": b.working_bytes,
            "program_bytes": b.program_bytes,
            "expert_cache_bytes": b.expert_bytes,
            "expert_cache_bytes_floor": b.expert_bytes_floor,
            "expert_cache_bytes_whole": b.expert_bytes_whole,
            "reason": b.reason,
        },
        "refusal": plan.refusal,
        "layers": shares.collect::<Vec<_>>(),
        "disk": plan.disk.as_ref().map(|d| json!({
            "bytes_per_s": d.bytes_per_s,
            "io": d.setting.mode.to_string(),
            "io_fallback": d.fallback_reason,
            "depth": d.setting.depth,
            "segment_bytes": d.setting.segment_bytes,
            "reads": d.reads,
            "remembered_unix_s": d.remembered_unix_s,
        })),
        "isa": plan.isa.name(),
        "compute_bytes_per_s": plan.compute_bytes_per_s,
        "cold": speed(cold(plan)),
        "warm": speed(warm(plan)),
    })
}
