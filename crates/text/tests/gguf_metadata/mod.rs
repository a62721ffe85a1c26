//! Just enough of a GGUF reader to get at the tokenizer metadata of a trusted test file.

use calypte_checkpoint::GgufTokenizer;

struct Reader<'a>(&'a [u8]);

enum Value {
    Int(i64),
    Text(String),
    Other,
    List(Vec<Value>),
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (head, tail) = self.0.split_first_chunk().unwrap();
        self.0 = tail;
        *head
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn text(&mut self) -> String {
        let len = self.u64() as usize;
        let (head, tail) = self.0.split_at(len);
        self.0 = tail;
        String::from_utf8(head.to_vec()).unwrap()
    }

    fn value(&mut self, kind: u32) -> Value {
        match kind {
            0 | 1 | 7 => Value::Int(self.take::<1>()[0].into()),
            4 => Value::Int(self.u32().into()),
            5 => Value::Int((self.u32() as i32).into()),
            10 | 11 => Value::Int(self.u64() as i64),
            6 => {
                self.u32();
                Value::Other
            }
            8 => Value::Text(self.text()),
            9 => {
                let (kind, len) = (self.u32(), self.u64());
                Value::List((0..len).map(|_| self.value(kind)).collect())
            }
            other => panic!("value type {other}"),
        }
    }
}

/// The tokenizer metadata of the GGUF file `bytes`.
pub fn read(bytes: &[u8]) -> GgufTokenizer {
    let mut reader = Reader(bytes);
    assert_eq!((reader.take(), reader.u32()), (*b"GGUF", 3));
    let (_tensors, pairs) = (reader.u64(), reader.u64());
    let mut meta = GgufTokenizer::default();
    for _ in 0..pairs {
        let key = reader.text();
        let kind = reader.u32();
        match (key.strip_prefix("tokenizer.").unwrap_or(&key), reader.value(kind)) {
            ("ggml.model", Value::Text(v)) => meta.model = v,
            ("ggml.pre", Value::Text(v)) => meta.pre = Some(v),
            ("chat_template", Value::Text(v)) => meta.chat_template = Some(v),
            ("ggml.tokens", Value::List(v)) => meta.tokens = texts(v),
            ("ggml.merges", Value::List(v)) => meta.merges = texts(v),
            ("ggml.token_type", Value::List(v)) => {
                meta.token_types = v.iter().map(|v| int(v) as i32).collect()
            }
            ("ggml.bos_token_id", v) => meta.bos = Some(int(&v) as u32),
            ("ggml.eos_token_id", v) => meta.eos = Some(int(&v) as u32),
            ("ggml.eot_token_id", v) => meta.eot = Some(int(&v) as u32),
            ("ggml.add_bos_token", v) => meta.add_bos = Some(int(&v) != 0),
            _ => {}
        }
    }
    meta
}

fn int(value: &Value) -> i64 {
    match value {
        Value::Int(v) => *v,
        _ => panic!("not a number"),
    }
}

fn texts(values: Vec<Value>) -> Vec<String> {
    let text = |v| match v {
        Value::Text(v) => v,
        _ => panic!("not a text"),
    };
    values.into_iter().map(text).collect()
}
