//! Splitting rules of byte-level BPE tokenizers, by the names that GGUF files give them.
//!
//! GGUF stores a name only, so each rule is written out here as the model's own `tokenizer.json` has it.

use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior};

use crate::error::TextError;

/// Words with contractions, up to three digits, punctuation with line ends, white space (cl100k and its descendants).
const CL100K: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// As above, with every digit on its own.
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Words split where lower case turns to upper case (o200k).
const O200K: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Rules applied one after the other.
const DEEPSEEK_V3: &[&str] = &[
    r"\p{N}{1,3}",
    r"[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+",
    concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
];

/// Rules applied one after the other, before digits are split off. The long class is the letters that have case.
const DEEPSEEK_LLM: &[&str] = &[
    r"[\r\n]",
    concat!(
        r"\s?[\u{41}-\u{5A}\u{61}-\u{7A}\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}",
        r"\u{1C4}-\u{293}\u{295}-\u{2AF}\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}",
        r"\u{38C}\u{38E}-\u{3A1}\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\u{10C5}",
        r"\u{13A0}-\u{13F5}\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}",
        r"\u{1D79}-\u{1D9A}\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}",
        r"\u{1F59}\u{1F5B}\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}",
        r"\u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}",
        r"\u{2102}\u{2107}\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}\u{2126}\u{2128}\u{212A}-\u{212D}",
        r"\u{212F}-\u{2134}\u{2139}\u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\u{2C00}-\u{2C7B}",
        r"\u{2C7E}-\u{2CE4}\u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}",
        r"\u{A771}-\u{A787}\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}",
        r"\u{FF41}-\u{FF5A}\u{10400}-\u{1044F}\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}",
        r"\u{10CC0}-\u{10CF2}\u{118A0}-\u{118DF}\u{1E900}-\u{1E943}]+"
    ),
    r"\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3000}-\u{3002}]+",
    r"\s+$",
    r"[\u{4E00}-\u{9FA5}\u{0800}-\u{4E00}\u{AC00}-\u{D7FF}]+",
];

/// The GPT-2 rule is built into [`ByteLevel`]; the others come before it.
#[derive(Clone, Copy)]
enum Rule {
    Gpt2,
    DigitsThenGpt2,
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

/// A row of the table: names, rule, NFC, `ignore_merges`, `add_bos`.
type Row = (&'static [&'static str], Rule, bool, bool, bool);

/// All rules known.
const TABLE: &[Row] = &[
    (&["gpt-2", "gpt2", "default"], Rule::Gpt2, false, false, false),
    (&["olmo"], Rule::Gpt2, true, false, false),
    (&["smollm", "starcoder", "refact"], Rule::DigitsThenGpt2, false, false, false),
    (&["llama-bpe", "llama3", "llama-v3"], Rule::Patterns(&[CL100K]), false, true, true),
    (&["dbrx"], Rule::Patterns(&[CL100K]), false, false, false),
    (&["glm4", "chatglm-bpe"], Rule::Patterns(&[CL100K]), false, false, false),
    (&["qwen2", "deepseek-r1-qwen"], Rule::Patterns(&[QWEN2]), true, false, false),
    (&["gpt-4o", "minimax-m2"], Rule::Patterns(&[O200K]), false, false, false),
    (&["deepseek-v3"], Rule::Patterns(DEEPSEEK_V3), false, false, false),
    (&["deepseek-llm"], Rule::PatternsThenDigits(DEEPSEEK_LLM), false, false, false),
];

/// The rules that `tokenizer.ggml.pre` names; files from before that key existed mean the GPT-2 rules.
///
/// # Errors
/// [`TextError::UnknownPreTokenizer`] when the name is not in the table.
pub(crate) fn splitting(pre: Option<&str>) -> Result<Splitting, TextError> {
    let name = pre.unwrap_or("default");
    let unknown = || TextError::UnknownPreTokenizer { found: name.to_owned(), known: known_names() };
    let row = TABLE.iter().find(|(names, ..)| names.contains(&name)).ok_or_else(unknown)?;
    let (_, rule, nfc, ignore_merges, add_bos) = *row;
    let pre_tokenizer = rule.build().map_err(|e| TextError::Tokenizer {
        file: format!("tokenizer.ggml.pre '{name}'"),
        reason: format!("its splitting rules do not compile ({e}); please report this"),
    })?;
    Ok(Splitting { normalizer: nfc.then(|| NFC.into()), pre_tokenizer, ignore_merges, add_bos })
}

fn known_names() -> String {
    TABLE.iter().flat_map(|(names, ..)| names.iter().copied()).collect::<Vec<_>>().join(", ")
}

impl Rule {
    fn build(self) -> tokenizers::Result<PreTokenizerWrapper> {
        let bytes = |own_rule| ByteLevel::new(false, true, own_rule).into();
        let digits = || Digits::new(true).into();
        Ok(match self {
            Rule::Gpt2 => bytes(true),
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
