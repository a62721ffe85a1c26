//! `--trace-out`: what a run spent its time on, as a file that ui.perfetto.dev and chrome://tracing open.
//!
//! The only place that knows their format (Google's "Trace Event Format", the JSON object form): complete events (`X`) for
//! spans, counters (`C`), names (`M`). Times are microseconds with three decimals, so no nanosecond is lost.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use calypte_engine::Engine;
pub use calypte_engine::timeline::Timeline;
use calypte_engine::timeline::{Lane, SPANS_MAX, Span};
use clap::Args;
use serde_json::json;

use crate::exit::{Failure, complain};
use crate::partial_file::PartialFile;

/// Thread numbers of the lanes; the first row of reads, which are as many as overlap, has [`DISK`].
const STEP: usize = 1;
const COMPUTE: usize = 2;
const STALL: usize = 3;
const DISK: usize = 4;

/// What is written down about a run.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Engine")]
pub struct TimelineArgs {
    /// Write to this file what took how long: steps, compute, stalls and reads, for ui.perfetto.dev or chrome://tracing
    #[arg(long, value_name = "FILE.json")]
    pub trace_out: Option<PathBuf>,
}

/// Does `work`, which is given a timeline to record on if one is wanted, and writes that down, however the work ended. A file
/// that cannot be written is refused before.
pub fn during(
    args: &TimelineArgs,
    work: impl FnOnce(Option<&Arc<Timeline>>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let Some(path) = &args.trace_out else { return work(None) };
    let file = TimelineFile::create(path)?;
    let timeline = Arc::new(Timeline::start());
    let outcome = work(Some(&timeline));
    let (spans, dropped) = timeline.take();
    let written = file.finish(spans, dropped);
    let written = written.map_err(|source| Failure::Output { to: path.display().to_string(), source });
    match (outcome, written) {
        (Ok(()), written) => written,
        (failed, Ok(())) => failed,
        (failed, Err(also)) => {
            also.message().iter().for_each(|message| complain(message));
            failed
        }
    }
}

/// From now on the engine records, if there is a timeline.
pub fn record(engine: &mut Engine, timeline: Option<&Arc<Timeline>>) {
    timeline.into_iter().for_each(|timeline| engine.record(Arc::clone(timeline)));
}

/// The file before it is written: a regular file, so that whatever bears the name is complete; pipes and devices are written to as they
/// are.
enum TimelineFile {
    Regular(PartialFile),
    Other(File),
}

impl TimelineFile {
    fn create(path: &Path) -> Result<TimelineFile, Failure> {
        let cannot = |e: io::Error| Failure::Usage(format!("{}: cannot be written: {e}", path.display()));
        match OpenOptions::new().write(true).open(path) {
            Ok(file) if !file.metadata().map_err(cannot)?.is_file() => return Ok(TimelineFile::Other(file)),
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(cannot(e)),
            _ => {}
        }
        PartialFile::create(path).map(TimelineFile::Regular).map_err(cannot)
    }

    fn finish(self, spans: Vec<Span>, dropped: u64) -> io::Result<()> {
        match self {
            TimelineFile::Regular(mut file) => {
                write(&mut file, spans, dropped)?;
                file.finish()
            }
            TimelineFile::Other(file) => {
                let mut out = BufWriter::new(file);
                write(&mut out, spans, dropped)?;
                out.flush()
            }
        }
    }
}

/// Writes the whole document.
fn write(out: &mut impl Write, mut spans: Vec<Span>, dropped: u64) -> io::Result<()> {
    spans.sort_by_key(|span| (span.start_ns, span.lane, Reverse(span.end_ns)));
    let about = json!({
        "program": concat!("calypte ", env!("CARGO_PKG_VERSION")),
        "spans": spans.len(),
        "spans_dropped": dropped,
        "spans_max": SPANS_MAX,
    });
    write!(out, "{{\"displayTimeUnit\":\"ms\",\"otherData\":{about},\"traceEvents\":[")?;
    name(out, "process_name", 0, "calypte")?;
    for (tid, lane) in [(STEP, "step"), (COMPUTE, "compute"), (STALL, "stall")] {
        out.write_all(b",")?;
        name_lane(out, tid, lane)?;
    }
    let mut rows = Rows::default();
    for span in &spans {
        let tid = match span.lane {
            Lane::Step => STEP,
            Lane::Compute => COMPUTE,
            Lane::Stall => STALL,
            Lane::Disk => {
                let known = rows.count;
                let row = rows.place(span);
                if row == known {
                    out.write_all(b",")?;
                    name_lane(out, DISK + row, &format!("disk {}", row + 1))?;
                }
                DISK + row
            }
        };
        write!(out, ",\n{{\"ph\":\"X\",\"pid\":1,\"tid\":{tid},\"name\":\"{}\"", span.name)?;
        write!(out, ",\"ts\":{},\"dur\":{}", Micros(span.start_ns), Micros(span.end_ns - span.start_ns))?;
        fields(out, span.fields())?;
        out.write_all(b"}")?;
    }
    counters(out, &spans)?;
    if let (true, Some(last)) = (dropped > 0, spans.iter().map(|span| span.end_ns).max()) {
        let ts = Micros(last);
        write!(out, ",\n{{\"ph\":\"i\",\"s\":\"g\",\"pid\":1,\"tid\":{STEP},\"ts\":{ts}")?;
        write!(out, ",\"name\":\"full: {dropped} later spans are not here\"}}")?;
    }
    out.write_all(b"\n]}\n")
}

fn name_lane(out: &mut impl Write, tid: usize, lane: &str) -> io::Result<()> {
    name(out, "thread_name", tid, lane)?;
    write!(out, ",\n{{\"ph\":\"M\",\"pid\":1,\"tid\":{tid},\"name\":\"thread_sort_index\"")?;
    write!(out, ",\"args\":{{\"sort_index\":{tid}}}}}")
}

fn name(out: &mut impl Write, of: &str, tid: usize, name: &str) -> io::Result<()> {
    write!(
        out,
        "\n{{\"ph\":\"M\",\"pid\":1,\"tid\":{tid},\"name\":\"{of}\",\"args\":{{\"name\":\"{name}\"}}}}"
    )
}

/// Numbers with their names; times, whose names end in `_ns`, in milliseconds.
fn fields(out: &mut impl Write, fields: impl Iterator<Item = (&'static str, u64)>) -> io::Result<()> {
    out.write_all(b",\"args\":{")?;
    for (i, (name, value)) in fields.enumerate() {
        let comma = if i > 0 { "," } else { "" };
        match name.strip_suffix("_ns") {
            Some(name) => {
                let (ms, ns) = (value / 1_000_000, value % 1_000_000);
                write!(out, "{comma}\"{name}_ms\":{ms}.{ns:06}")?;
            }
            None => write!(out, "{comma}\"{name}\":{value}")?,
        }
    }
    out.write_all(b"}")
}

/// Nanoseconds, shown as microseconds.
struct Micros(u64);

impl std::fmt::Display for Micros {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// Rows of reads: as many as there are at once.
#[derive(Default)]
struct Rows {
    count: usize,
    /// When each busy row becomes free, the soonest first.
    busy: BinaryHeap<Reverse<(u64, usize)>>,
    free: BinaryHeap<Reverse<usize>>,
}

impl Rows {
    /// The first row that is free when `span` begins. Spans come in the order of their beginnings.
    fn place(&mut self, span: &Span) -> usize {
        while let Some(Reverse((end_ns, row))) = self.busy.peek().copied()
            && end_ns <= span.start_ns
        {
            self.busy.pop();
            self.free.push(Reverse(row));
        }
        let row = self.free.pop().map_or(self.count, |Reverse(row)| row);
        self.count = self.count.max(row + 1);
        self.busy.push(Reverse((span.end_ns, row)));
        row
    }
}

/// Reads that wait in line and that are at the drive, whenever that changes; of every step hits and misses, and the memory
/// that experts take at its end.
fn counters(out: &mut impl Write, spans: &[Span]) -> io::Result<()> {
    let count = |out: &mut _, at_ns, name, values: &[(&'static str, u64)]| {
        write_counter(out, at_ns, name, values.iter().copied())
    };
    let mut changes: Vec<(u64, i64, i64)> = Vec::new();
    for span in spans {
        let of = |name| span.field(name).unwrap_or(0);
        match span.lane {
            Lane::Step => {
                let asked = [("hits", of("hits")), ("misses", of("misses"))];
                count(out, span.start_ns, "experts", &asked)?;
                count(out, span.end_ns, "memory for experts", &[("bytes", of("resident_bytes"))])?;
            }
            Lane::Disk => {
                let issued_ns = (span.start_ns + of("in_line_ns")).min(span.end_ns);
                changes.extend([(span.start_ns, 1, 0), (issued_ns, -1, 1), (span.end_ns, 0, -1)]);
            }
            Lane::Compute | Lane::Stall => {}
        }
    }
    changes.sort_unstable_by_key(|&(at_ns, ..)| at_ns);
    let (mut waiting, mut reading) = (0i64, 0i64);
    for at_once in changes.chunk_by(|a, b| a.0 == b.0) {
        waiting += at_once.iter().map(|change| change.1).sum::<i64>();
        reading += at_once.iter().map(|change| change.2).sum::<i64>();
        // Of what happens at one moment the sum is never negative.
        let values = [("in line", waiting.unsigned_abs()), ("at the drive", reading.unsigned_abs())];
        count(out, at_once[0].0, "reads in flight", &values)?;
    }
    Ok(())
}

fn write_counter(
    out: &mut impl Write,
    at_ns: u64,
    name: &str,
    values: impl Iterator<Item = (&'static str, u64)>,
) -> io::Result<()> {
    write!(out, ",\n{{\"ph\":\"C\",\"pid\":1,\"name\":\"{name}\",\"ts\":{}", Micros(at_ns))?;
    fields(out, values)?;
    out.write_all(b"}")
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use calypte_engine::timeline::SPANS_MAX;
    use serde_json::Value;

    use super::*;

    /// Draws spans (lane, begin and end in µs, µs in line) with room for `room`, and returns (row, begin, length) of each as
    /// the file has it, in its order, and the document.
    fn draw(spans: &[(Lane, u64, u64, u64)], room: usize) -> (Vec<(u64, f64, f64)>, Value) {
        let timeline = Timeline::with_room(room);
        let start = Instant::now();
        for &(lane, from, to, in_line) in spans {
            let at = |micros| start + Duration::from_micros(micros);
            timeline.add(lane, "work", (at(from), at(to)), &["in_line_ns"], [in_line * 1000]);
        }
        let (spans, dropped) = timeline.take();
        let mut bytes = Vec::new();
        write(&mut bytes, spans, dropped).expect("memory");
        let document: Value = serde_json::from_slice(&bytes).expect("JSON");
        let events = document["traceEvents"].as_array().expect("a list");
        let number = |event: &Value, key: &str| event[key].as_f64().expect("a number");
        let drawn: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").collect();
        let first = drawn.first().map_or(0.0, |event| number(event, "ts"));
        let row = |event: &&Value| {
            let begin = (number(event, "ts") - first).round();
            (event["tid"].as_u64().expect("a number"), begin, number(event, "dur"))
        };
        (drawn.iter().map(row).collect(), document)
    }

    #[track_caller]
    fn check(spans: &[(Lane, u64, u64, u64)], expected: &[(usize, u64, u64)]) {
        let expected: Vec<_> = expected.iter().map(|&(t, b, d)| (t as u64, b as f64, d as f64)).collect();
        assert_eq!(draw(spans, SPANS_MAX).0, expected);
    }

    #[test]
    fn lanes_have_their_rows_and_reads_as_many_as_overlap() {
        use Lane::{Compute, Disk, Stall, Step};
        check(&[], &[]);
        check(
            &[(Compute, 1, 3, 0), (Stall, 3, 9, 0), (Step, 0, 10, 0)],
            &[(STEP, 0, 10), (COMPUTE, 1, 2), (STALL, 3, 6)],
        );
        // The second overlaps the first, the third takes the row that is free first, the fourth both.
        check(
            &[(Disk, 0, 5, 0), (Disk, 1, 4, 0), (Disk, 4, 8, 0), (Disk, 5, 6, 0)],
            &[(DISK, 0, 5), (DISK + 1, 1, 3), (DISK + 1, 4, 4), (DISK, 5, 1)],
        );
    }

    #[test]
    fn reads_are_counted_in_line_and_at_the_drive() {
        let (_, document) = draw(&[(Lane::Disk, 0, 10, 4), (Lane::Disk, 4, 9, 5)], SPANS_MAX);
        let events = document["traceEvents"].as_array().expect("a list").iter();
        let counts = events.filter(|event| event["ph"] == "C").map(|event| {
            let of = |name: &str| event["args"][name].as_u64().expect("a number");
            (of("in line"), of("at the drive"))
        });
        // The second one was called off before it was issued.
        assert_eq!(counts.collect::<Vec<_>>(), [(1, 0), (1, 1), (0, 1), (0, 0)]);
    }

    #[test]
    fn what_is_missing_is_said() {
        let spans = [(Lane::Compute, 0, 1, 0), (Lane::Compute, 1, 2, 0), (Lane::Compute, 2, 3, 0)];
        let (drawn, document) = draw(&spans, 2);
        assert_eq!((drawn.len(), &document["otherData"]["spans_dropped"]), (2, &Value::from(1)));
        let events = document["traceEvents"].as_array().expect("a list");
        assert!(
            events
                .iter()
                .any(|event| event["ph"] == "i" && event["name"] == "full: 1 later spans are not here")
        );
        let (_, whole) = draw(&spans, 3);
        assert_eq!(whole["otherData"]["spans_dropped"], 0);
    }
}
