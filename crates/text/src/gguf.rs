//! Tokenizers from GGUF metadata.

use std::collections::HashMap;

use calypte_checkpoint::GgufTokenizer;
use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, Merges, Vocab};

use crate::alphabet::{SPACE_SYMBOL, Spelling, check_alphabet};
use crate::charsmap::{CharsMap, Normalizer};
use crate::error::TextError;
use crate::gguf_types::{bad, kind, token_type};
use crate::parts::{Encoder, Parts};
use crate::pieces::Pieces;
use crate::pretokenizer::splitting;
use crate::spm::SentencePiece;
use crate::unigram::Unigram;
use crate::vocabulary::{Entry, VOCAB_SIZE_MAX, Vocabulary};

/// Control tokens that end an assistant's turn under any model that has them. GGUF files often name only one end token.
const END_OF_TURN: &[&str] =
    &["<|im_end|>", "<|eot_id|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>"];

/// Builds the tokenizer.
pub(crate) fn parse(meta: &GgufTokenizer) -> Result<Parts, TextError> {
    check_sizes(meta)?;
    let (encoder, spelling, add_bos_default) = match meta.model.as_str() {
        "gpt2" => {
            let rules = splitting(meta.pre.as_deref())?;
            let add_bos = rules.add_bos;
            (Encoder::Pieces(Box::new(byte_level(meta, rules)?)), Spelling::ByteLevel, add_bos)
        }
        "llama" => {
            (Encoder::SentencePiece(Box::new(SentencePiece::new(meta)?)), Spelling::SentencePiece, true)
        }
        "t5" => {
            let encoder = Encoder::Unigram(Box::new(Unigram::new(meta, normalizer(meta)?)?));
            (encoder, Spelling::SentencePiece, false)
        }
        other => {
            let supported = "gpt2 (byte-level BPE), llama (SentencePiece BPE), t5 (SentencePiece unigram)";
            return Err(TextError::UnsupportedModel { found: other.to_owned(), supported });
        }
    };
    let mut vocabulary = Vocabulary::new(entries(meta, spelling));
    let known = |id: &u32| (*id as usize) < meta.tokens.len();
    let (bos, eos) = (meta.bos.filter(known), meta.eos.filter(known));
    let mut end_ids: Vec<u32> = eos.into_iter().chain(meta.eot.filter(known)).collect();
    for name in END_OF_TURN {
        end_ids.extend(vocabulary.id_of(name).filter(|&id| vocabulary.is_special(id)));
    }
    for &id in bos.iter().chain(&end_ids) {
        vocabulary.mark_special(id);
    }
    Ok(Parts {
        encoder,
        vocabulary,
        bos,
        eos,
        add_bos: bos.is_some() && meta.add_bos.unwrap_or(add_bos_default),
        end_ids,
        strips_space: spelling == Spelling::SentencePiece && meta.add_space_prefix.unwrap_or(true),
        template: meta.chat_template.clone(),
    })
}

fn normalizer(meta: &GgufTokenizer) -> Result<Normalizer, TextError> {
    let map = CharsMap::new(&meta.precompiled_charsmap);
    let map = map.map_err(|reason| bad("precompiled_charsmap", reason))?;
    let merges_space = meta.remove_extra_whitespaces.unwrap_or(false);
    Ok(Normalizer { map, merges_space, space_prefix: meta.add_space_prefix.unwrap_or(true) })
}

fn check_sizes(meta: &GgufTokenizer) -> Result<(), TextError> {
    let size = meta.tokens.len();
    if size == 0 || size > VOCAB_SIZE_MAX {
        return Err(bad("tokens", format!("{size} tokens, expected 1 to {VOCAB_SIZE_MAX}")));
    }
    for (key, len) in [("token_type", meta.token_types.len()), ("scores", meta.scores.len())] {
        if len != 0 && len != size {
            return Err(bad(key, format!("{len} values, expected one for each of the {size} tokens")));
        }
    }
    Ok(())
}

fn entries(meta: &GgufTokenizer, spelling: Spelling) -> Vec<Option<Entry>> {
    let entry = |(id, content): (usize, &String)| {
        let kind = kind(meta, id);
        let bytes = match kind {
            token_type::CONTROL | token_type::UNKNOWN => content.clone().into_bytes(),
            token_type::USER_DEFINED => whole_bytes(content, spelling),
            _ => spelling.bytes(content),
        };
        let special = matches!(kind, token_type::CONTROL | token_type::UNKNOWN);
        Some(Entry { content: content.clone(), bytes, special })
    };
    meta.tokens.iter().enumerate().map(entry).collect()
}

/// What a token that is found in texts as a whole decodes to: itself, but for SentencePiece's spaces.
pub(crate) fn whole_bytes(content: &str, spelling: Spelling) -> Vec<u8> {
    match spelling {
        Spelling::ByteLevel => content.as_bytes().to_vec(),
        Spelling::SentencePiece => content.replace(SPACE_SYMBOL, " ").into_bytes(),
    }
}

fn byte_level(meta: &GgufTokenizer, rules: crate::pretokenizer::Splitting) -> Result<Pieces, TextError> {
    let mut first_ids: HashMap<&str, u32> = HashMap::with_capacity(meta.tokens.len());
    for (id, token) in (0u32..).zip(&meta.tokens) {
        first_ids.entry(token).or_insert(id); // padding entries repeat strings: the first id is the one in use
    }
    check_alphabet(|c| first_ids.contains_key(c)).map_err(|reason| bad("tokens", reason))?;
    let merges = merges(meta, &first_ids)?;
    let vocab: Vocab = first_ids.into_iter().map(|(token, id)| (token.to_owned(), id)).collect();
    let failed = |e: tokenizers::Error| bad("merges", e.to_string());
    let model = BPE::builder().vocab_and_merges(vocab, merges).ignore_merges(rules.ignore_merges).build();
    let mut inner = tokenizers::Tokenizer::new(model.map_err(failed)?);
    inner.with_normalizer(rules.normalizer).map_err(failed)?;
    inner.with_pre_tokenizer(Some(rules.pre_tokenizer));
    inner.add_tokens(added_tokens(meta)).map_err(failed)?;
    Ok(Pieces::new(inner, None))
}

fn merges(meta: &GgufTokenizer, ids: &HashMap<&str, u32>) -> Result<Merges, TextError> {
    let parse = |(i, merge): (usize, &String)| {
        let pair = merge.split_once(' ');
        let known = |(a, b): &(&str, &str)| {
            ids.contains_key(a) && ids.contains_key(b) && ids.contains_key(format!("{a}{b}").as_str())
        };
        let pair = pair.filter(known).map(|(a, b)| (a.to_owned(), b.to_owned()));
        let reason =
            || format!("entry {i} is '{merge}', expected two tokens and a space, whose joint is a token");
        pair.ok_or_else(|| bad("merges", reason()))
    };
    meta.merges.iter().enumerate().map(parse).collect()
}

/// Tokens that stand in the text as they are: control (special) and user-defined (ordinary) ones.
fn added_tokens(meta: &GgufTokenizer) -> Vec<AddedToken> {
    let ends = [meta.bos, meta.eos, meta.eot];
    let token = |(id, content): (usize, &String)| {
        let kind = kind(meta, id);
        // Some files mark their own end tokens as ordinary ones.
        let end = ends.contains(&u32::try_from(id).ok());
        let special = end || matches!(kind, token_type::CONTROL | token_type::UNKNOWN);
        (special || kind == token_type::USER_DEFINED)
            .then(|| AddedToken::from(content.as_str(), special).normalized(false))
    };
    meta.tokens.iter().enumerate().filter_map(token).collect()
}
