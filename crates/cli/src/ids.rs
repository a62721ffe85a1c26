//! Lists of token ids as people and programs write them.

use std::str::FromStr;

/// Token ids as given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ids(pub Vec<u32>);

impl FromStr for Ids {
    type Err = String;

    fn from_str(text: &str) -> Result<Ids, String> {
        let words = text.split(|c: char| c == ',' || c.is_whitespace());
        let words = words.filter(|w| !w.is_empty());
        let ids: Result<Vec<u32>, String> = words
            .map(|w| w.parse().map_err(|_| format!("`{w}` is no token id; expected numbers such as `1,2,3`")))
            .collect();
        let ids = ids?;
        if ids.is_empty() {
            return Err("there is no token id; expected numbers such as `1,2,3`".to_string());
        }
        Ok(Ids(ids))
    }
}
