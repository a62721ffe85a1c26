//! Stop strings in streamed text.

/// What [`StopMatcher::push`] lets through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Emit {
    /// Text that cannot be part of a stop string any more.
    pub text: String,
    /// Index of the stop string that ended the text, once one did. The stop string itself is never emitted.
    pub stopped: Option<usize>,
}

/// Looks for stop strings in text that arrives in pieces, and holds back whatever might become one.
///
/// The text stops at the stop string that is *completed first*; of several completed by the same character, the longest
/// wins. This makes the result the same for every way of cutting up the text.
#[derive(Clone, Debug, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    stopped: Option<usize>,
}

impl StopMatcher {
    /// Stops at any of `stops`; empty ones are ignored, as they would stop every text before it began.
    pub fn new<S: Into<String>>(stops: impl IntoIterator<Item = S>) -> Self {
        Self { stops: stops.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, text: &str) -> Emit {
        if self.stopped.is_some() {
            return Emit { text: String::new(), stopped: self.stopped };
        }
        for c in text.chars() {
            self.held.push(c);
            if let Some(i) = self.completed() {
                let keep = self.held.len() - self.stops[i].len();
                self.held.truncate(keep);
                self.stopped = Some(i);
                return Emit { text: std::mem::take(&mut self.held), stopped: self.stopped };
            }
        }
        let safe = self.held.len() - self.possible_start_bytes();
        let rest = self.held.split_off(safe);
        Emit { text: std::mem::replace(&mut self.held, rest), stopped: None }
    }

    /// Ends the text: what was held back turned out not to be a stop string.
    pub fn finish(&mut self) -> Emit {
        Emit { text: std::mem::take(&mut self.held), stopped: self.stopped }
    }

    /// The stop string that the held text ends with; the longest of several.
    fn completed(&self) -> Option<usize> {
        let ends = |s: &String| !s.is_empty() && self.held.ends_with(s.as_str());
        let hits = self.stops.iter().enumerate().filter(|(_, s)| ends(s));
        hits.rev().max_by_key(|(_, s)| s.len()).map(|(i, _)| i)
    }

    /// Length of the longest suffix of the held text that is the beginning of some stop string.
    fn possible_start_bytes(&self) -> usize {
        let starts =
            |s: &String| s.char_indices().map(|(i, _)| i).rev().find(|&i| self.held.ends_with(&s[..i]));
        self.stops.iter().filter_map(starts).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The outcome must be the same for every way of cutting the text at character boundaries.
    fn check(stops: &[&str], text: &str, expected: &str, stopped: Option<usize>) {
        let cuts: Vec<usize> = text.char_indices().map(|(i, _)| i).skip(1).collect();
        assert!(cuts.len() <= 12, "{text} has too many chunkings");
        for mask in 0..1u32 << cuts.len() {
            let mut matcher = StopMatcher::new(stops.iter().copied());
            let (mut got, mut last, mut from) = (String::new(), None, 0);
            let chosen = cuts.iter().enumerate().filter(|(i, _)| mask >> i & 1 == 1).map(|(_, &c)| c);
            for to in chosen.chain([text.len()]) {
                let emit = matcher.push(&text[from..to]);
                got += &emit.text;
                last = last.or(emit.stopped);
                from = to;
            }
            let end = matcher.finish();
            got += &end.text;
            assert_eq!(
                (got.as_str(), last, end.stopped),
                (expected, stopped, stopped),
                "{stops:?} in {text:?}, cuts {mask:b}"
            );
        }
    }

    #[test]
    fn stops_in_every_chunking() {
        check(&[], "abc", "abc", None);
        check(&[""], "abc", "abc", None);
        check(&["stop"], "do stop it", "do ", Some(0));
        check(&["stop"], "sto sto st", "sto sto st", None);
        check(&["aab"], "aaaab", "aa", Some(0));
        check(&["abcd", "bc"], "xabcd", "xa", Some(1));
        check(&["bc", "abc"], "xabc", "x", Some(1));
        check(&["\n\n"], "a\n\n\nb", "a", Some(0));
        check(&["é!", "日本"], "aé日本語", "aé", Some(1));
        check(&["x", "x"], "ax", "a", Some(0));
        check(&["</s>"], "a</s</s>b", "a</s", Some(0));
        check(&["abab"], "abaabab", "aba", Some(0));
    }

    #[test]
    fn holds_back_only_what_could_stop() {
        let mut matcher = StopMatcher::new(["END"]);
        let seen: Vec<String> = ["aE", "N", "x", "E"].iter().map(|t| matcher.push(t).text).collect();
        assert_eq!(seen, ["a", "", "ENx", ""]);
        assert_eq!(matcher.finish().text, "E");
    }

    #[test]
    fn nothing_after_the_stop() {
        let mut matcher = StopMatcher::new(["."]);
        assert_eq!(matcher.push("a. b"), Emit { text: "a".into(), stopped: Some(0) });
        assert_eq!(matcher.push("c"), Emit { text: String::new(), stopped: Some(0) });
    }
}
