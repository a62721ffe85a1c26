//! Routing like that of a real model, for tests of caches: skewed, with topics that last, and with neighbours alike.

/// What is generated.
#[derive(Clone, Copy, Debug)]
pub struct Routing {
    /// MoE layers.
    pub layers: usize,
    /// Experts of a layer.
    pub experts: u32,
    /// Experts of a token.
    pub top_k: usize,
    /// Tokens.
    pub tokens: usize,
    /// Start of the random sequence.
    pub seed: u64,
}

/// A topic lasts this many tokens on average.
const TOPIC_TOKENS: u64 = 48;
/// Topics of a text, which come back.
const TOPICS: u64 = 6;
/// Of 100 choices: repeated from the token before.
const REPEATED: u64 = 35;
/// Of 100 choices: from the topic's favourites, besides those repeated. The rest is noise.
const FAVOURED: u64 = 45;

impl Routing {
    /// Ids as `[tokens][layers][top_k]`, distinct within a token and layer.
    pub fn generate(&self) -> Vec<Vec<Vec<u16>>> {
        let mut state = self.seed | 1;
        // Xorshift (Marsaglia 2003).
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) % below.max(1)
        };
        let favourites = self.top_k as u64 * 2;
        let mut topic = 0;
        let mut out: Vec<Vec<Vec<u16>>> = Vec::with_capacity(self.tokens);
        for token in 0..self.tokens {
            if random(TOPIC_TOKENS) == 0 {
                topic = random(TOPICS);
            }
            let of_layer = |layer: usize| {
                let mut chosen: Vec<u16> = Vec::with_capacity(self.top_k);
                while chosen.len() < self.top_k {
                    let before = token.checked_sub(1).map(|last| &out[last][layer]);
                    let id = match (random(100), before) {
                        (0..REPEATED, Some(before)) => u64::from(before[random(self.top_k as u64) as usize]),
                        (roll, _) if roll < REPEATED + FAVOURED => {
                            // Spread over the experts, differently in every layer.
                            (topic * 7919 + layer as u64 * 104_729 + random(favourites) * 31)
                                % u64::from(self.experts)
                        }
                        _ => random(u64::from(self.experts)),
                    };
                    if !chosen.contains(&(id as u16)) {
                        chosen.push(id as u16);
                    }
                }
                chosen
            };
            let row = (0..self.layers).map(of_layer).collect();
            out.push(row);
        }
        out
    }
}
