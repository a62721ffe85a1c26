//! Splitting rules of byte-level BPE tokenizers, by the names that GGUF files give them.
//!
//! GGUF stores a name only, so each rule is written out here as the model's own `tokenizer.json` has it. Several names mean
//! the same rule; where llama.cpp approximates a rule to suit its own regular expressions, the original is what counts.

mod patterns;

use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::punctuation::Punctuation;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior};

use crate::error::TextError;
use patterns::{
    BAILING, CL100K, DEEPSEEK_CODER, DEEPSEEK_LLM, DEEPSEEK_V3, EXAONE_MOE, KIMI_K2, O200K, QWEN2, QWEN35,
    SEED_CODER, TEKKEN,
};

/// The GPT-2 rule is built into [`ByteLevel`]; the others come before it.
#[derive(Clone, Copy)]
enum Rule {
    Gpt2,
    DigitsThenGpt2,
    Falcon,
    Patterns(&'static [&'static str]),
    PatternsThenDigits(&'static [&'static str]),
}

/// How a GGUF vocabulary is to be used.
pub(crate) struct Splitting {
    /// Unicode normalisation before everything else.
    pub(crate) normalizer: Option<NormalizerWrapper>,
    /// Splits into words and writes them in the byte-level alphabet.
    pub(crate) pre_tokenizer: PreTokenizerWrapper,
    /// A word that is a token is that token, whatever the merges say.
    pub(crate) ignore_merges: bool,
    /// Whether texts begin with the beginning-of-sequence token when the file does not say.
    pub(crate) add_bos: bool,
}

/// What a name in `tokenizer.ggml.pre` stands for.
struct Row {
    names: &'static [&'static str],
    rule: Rule,
    nfc: bool,
    ignore_merges: bool,
    add_bos: bool,
}

const fn row(names: &'static [&'static str], rule: Rule) -> Row {
    Row { names, rule, nfc: false, ignore_merges: false, add_bos: false }
}

impl Row {
    /// Texts are composed (NFC) before everything else.
    const fn nfc(self) -> Row {
        Row { nfc: true, ..self }
    }

    /// A word that is a token is that token, whatever the merges say: vocabularies that come from tiktoken.
    const fn whole_words(self) -> Row {
        Row { ignore_merges: true, ..self }
    }

    const fn with_bos(self) -> Row {
        Row { add_bos: true, ..self }
    }
}

/// All rules known.
const TABLE: &[Row] = &[
    row(&["gpt-2", "gpt2", "default", "phi-2", "exaone4", "trillion", "jais"], Rule::Gpt2),
    row(&["olmo", "mpt"], Rule::Gpt2).nfc(),
    row(
        &["smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"],
        Rule::DigitsThenGpt2,
    ),
    row(&["command-r"], Rule::DigitsThenGpt2).nfc(),
    row(&["falcon"], Rule::Falcon),
    row(
        &["llama-bpe", "llama3", "llama-v3", "lfm2", "falcon3", "falcon-h1", "pixtral"],
        Rule::Patterns(&[CL100K]),
    )
    .whole_words()
    .with_bos(),
    row(&["smaug-bpe", "glm4", "glm5", "chatglm-bpe"], Rule::Patterns(&[CL100K])).whole_words(),
    row(&["dbrx"], Rule::Patterns(&[CL100K])),
    row(&["qwen2", "deepseek-r1-qwen", "megrez", "kormo"], Rule::Patterns(&[QWEN2])).nfc(),
    row(&["stablelm2", "hunyuan", "grok-2", "solar-open"], Rule::Patterns(&[QWEN2])),
    row(&["qwen35"], Rule::Patterns(&[QWEN35])).nfc(),
    row(&["seed-coder"], Rule::Patterns(&[SEED_CODER])),
    row(&["bailingmoe", "bailingmoe2", "llada-moe"], Rule::Patterns(&[BAILING])),
    row(&["exaone-moe"], Rule::Patterns(&[EXAONE_MOE])),
    row(&["gpt-4o", "llama4"], Rule::Patterns(&[O200K])).whole_words(),
    row(&["minimax-m2", "kanana2"], Rule::Patterns(&[O200K])),
    row(&["tekken"], Rule::Patterns(&[TEKKEN])).whole_words().with_bos(),
    row(&["kimi-k2"], Rule::Patterns(&[KIMI_K2])).whole_words(),
    row(&["deepseek-v3", "hunyuan-dense", "joyai-llm"], Rule::Patterns(DEEPSEEK_V3)),
    row(&["deepseek-llm"], Rule::PatternsThenDigits(DEEPSEEK_LLM)),
    row(&["deepseek-coder"], Rule::PatternsThenDigits(DEEPSEEK_CODER)),
];

/// The rules that `tokenizer.ggml.pre` names; files from before that key existed mean the GPT-2 rules.
///
/// # Errors
/// [`TextError::UnknownPreTokenizer`] when the name is not in the table.
pub(crate) fn splitting(pre: Option<&str>) -> Result<Splitting, TextError> {
    let name = pre.unwrap_or("default");
    let unknown = || TextError::UnknownPreTokenizer { found: name.to_owned(), known: known_names() };
    let row = TABLE.iter().find(|row| row.names.contains(&name)).ok_or_else(unknown)?;
    let pre_tokenizer = row.rule.build().map_err(|e| TextError::Tokenizer {
        file: format!("tokenizer.ggml.pre '{name}'"),
        reason: format!("its splitting rules do not compile ({e}); please report this"),
    })?;
    let normalizer = row.nfc.then(|| NFC.into());
    Ok(Splitting { normalizer, pre_tokenizer, ignore_merges: row.ignore_merges, add_bos: row.add_bos })
}

fn known_names() -> String {
    TABLE.iter().flat_map(|row| row.names).copied().collect::<Vec<_>>().join(", ")
}

impl Rule {
    fn build(self) -> tokenizers::Result<PreTokenizerWrapper> {
        let bytes = |own_rule| ByteLevel::new(false, true, own_rule).into();
        let digits = || Digits::new(true).into();
        Ok(match self {
            Rule::Gpt2 => bytes(true),
            Rule::Falcon => {
                let punctuation = Punctuation::new(SplitDelimiterBehavior::Contiguous).into();
                let mut steps = vec![punctuation, bytes(true), Digits::new(false).into()];
                steps.extend(splits(&["[0-9][0-9][0-9]"])?);
                Sequence::new(steps).into()
            }
            Rule::DigitsThenGpt2 => Sequence::new(vec![digits(), bytes(true)]).into(),
            Rule::Patterns(patterns) => {
                let mut steps = splits(patterns)?;
                steps.push(bytes(false));
                Sequence::new(steps).into()
            }
            Rule::PatternsThenDigits(patterns) => {
                let mut steps = splits(patterns)?;
                steps.extend([digits(), bytes(false)]);
                Sequence::new(steps).into()
            }
        })
    }
}

fn splits(patterns: &[&str]) -> tokenizers::Result<Vec<PreTokenizerWrapper>> {
    let split = |p: &&str| {
        Ok(Split::new(SplitPattern::Regex((*p).to_owned()), SplitDelimiterBehavior::Isolated, false)?.into())
    };
    patterns.iter().map(split).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alphabet::Spelling;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

    fn check(pre: &str, text: &str, expected: &str) {
        let rules = splitting(Some(pre)).unwrap();
        let mut pieces = PreTokenizedString::from(text);
        rules.pre_tokenizer.pre_tokenize(&mut pieces).unwrap();
        let words = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let words: Vec<String> =
            words.iter().map(|w| String::from_utf8(Spelling::ByteLevel.bytes(w.0)).unwrap()).collect();
        assert_eq!(words.join("|"), expected, "{pre}: {text}");
    }

    #[test]
    fn words_of_each_rule() {
        let text = "I'M it's 12345 x_y\n\n  end  ";
        check("gpt-2", text, "I|'|M| it|'s| 12345| x|_|y|\n\n | end|  ");
        check("smollm", "a 12 b", "a| |1|2| b");
        check("llama-bpe", text, "I|'M| it|'s| |123|45| x|_y|\n\n| | end|  ");
        check("qwen2", text, "I|'M| it|'s| |1|2|3|4|5| x|_y|\n\n| | end|  ");
        check("glm4", "1234.\n\n5", "123|4|.\n\n|5");
        check("gpt-4o", "camelCase HTTPServer don't", "camel|Case| HTTPServer| don't");
        check("deepseek-v3", "12345 日本語abc (x)\n", "123|45| |日本語|abc| (|x|)\n");
        // The rule for punctuation contains the ASCII letters, and so cuts words at other letters.
        check(
            "deepseek-llm",
            "Hi wörld 42,\u{2126}\u{212A} 日本 x\n",
            "Hi| w|ö|rld| |4|2|,|\u{2126}\u{212A}| |日本| x|\n",
        );
    }

    #[test]
    fn unknown_rules_are_refused_by_name() {
        let error = splitting(Some("nonesuch")).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains("'nonesuch'") && error.contains("smollm, starcoder"), "{error}");
    }
}
