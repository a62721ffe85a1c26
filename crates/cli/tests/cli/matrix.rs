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
        // A machine without one of them takes its best instead; the answer is the same there, too.
        let tiers = match cfg!(target_arch = "aarch64") {
            true => ["scalar", "neon", "dotprod"],
            false => ["scalar", "avx2", "avx512"],
        };
        let digests: BTreeSet<String> = tiers
            .into_iter()
            .map(|isa| {
                let output = command(&args).env("CALYPTE_ISA", isa).output().expect("the program starts");
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                let object: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
                object["logits_sha256"].to_string()
            })
            .collect();
        assert_eq!(digests.len(), 1, "{name}: {digests:?}");
    }
}
