//! One answer, on every set of instructions. (The settings of the engine are compared in the engine's own tests.)

use std::collections::BTreeSet;

use crate::program::{command, expected, fixture, list, words};

#[test]
fn every_instruction_set_gives_the_same_bits() {
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["glm_moe_dsa-a", "quant-mix", "qwen3_moe-a"] {
        let ids = dir.path().join(name);
        std::fs::write(&ids, list(&expected(name)["prompt_ids"])).expect("written");
        let model = fixture(name).join("model.gguf");
        let args = words("score {M} --ids-file {I} --json", &[("M", &model), ("I", &ids)]);
        // The first is the machine's best. A machine without one of the others says so.
        let tiers = ["", "scalar", "neon", "dotprod", "avx2", "avx512"];
        let digests: BTreeSet<String> = tiers
            .into_iter()
            .filter_map(|isa| {
                let output = command(&args).env("CALYPTE_ISA", isa).output().expect("the program starts");
                let stderr = String::from_utf8_lossy(&output.stderr);
                if !matches!(isa, "" | "scalar") && stderr.contains("no instruction set of this machine") {
                    return None;
                }
                assert!(output.status.success(), "{stderr}");
                let object: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
                Some(object["logits_sha256"].to_string())
            })
            .collect();
        assert_eq!(digests.len(), 1, "{name}: {digests:?}");
    }
}
