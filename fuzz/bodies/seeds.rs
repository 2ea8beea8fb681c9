//! Makes inputs that show a fuzzer each target's format, from the tests' fixtures. `write_seeds` writes them to a folder.

use std::io::Write;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fixtures::architectures::{Architecture, architectures, embedders};
use fixtures::vision::vision_models;
use fixtures::{golden, golden_text, packed_text};
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use gguf::{Array, GgufBuilder};
use model::QUANTS;
use model::testing::TinyModel;
use serde_json::{Value as Json, json};

use crate::sections::joined;

/// Longest seed [bytes]. Fuzzers are slow with long seeds.
const MOST: usize = 16 << 10;

/// A file without its tensors' data, which the target appends.
fn header(file: &GgufBuilder) -> Vec<u8> {
    let alignment = u64::from(file.alignment);
    let data = file.tensors.iter().fold(0, |at: u64, tensor| at.next_multiple_of(alignment) + tensor.bytes.len() as u64);
    let mut bytes = file.build();
    bytes.truncate(bytes.len() - data as usize);
    bytes
}

/// Tiny models of all architectures. Built once, because their weights take long to make.
static ARCHITECTURES: LazyLock<Vec<GgufBuilder>> = LazyLock::new(|| architectures().1.iter().map(Architecture::build).collect());

fn tiny_models() -> Vec<GgufBuilder> {
    let tiny = |tiny: TinyModel| TinyModel { vocab_size: 8, num_layers: 1, ..tiny }.build();
    let plain = TinyModel::all().map(tiny);
    let llama = TinyModel::all().next().expect("a model");
    let quantised = QUANTS.iter().map(|quant| tiny(TinyModel { quant, ..llama.clone() }));
    plain.chain(quantised).collect()
}

/// Tiny picture encoders of all families.
fn encoders() -> impl Iterator<Item = GgufBuilder> {
    vision_models().into_iter().map(|model| model.encoder())
}

/// Three lengths of a header, because the length chooses the data that is appended.
fn with_lengths(header: Vec<u8>) -> impl Iterator<Item = Vec<u8>> {
    (0..3).map(move |more| [header.as_slice(), &[0; 4][..more]].concat())
}

pub fn gguf() -> Vec<Vec<u8>> {
    let nested = Array::Nested(vec![Array::U8(vec![1]), Array::Strings(vec!["x".into()]), Array::Nested(vec![])]);
    let values = GgufBuilder { alignment: 64, ..GgufBuilder::new() }
        .kv("general.architecture", "llama")
        .kv("a", u64::MAX)
        .kv("b", -1i8)
        .kv("c", 0.5f64)
        .kv("d", true)
        .kv("e", nested)
        .kv("f", Array::Bool(vec![true]))
        .kv("split.count", 1u16)
        .tensor_f32("t", &[3], &[1.0, 2.0, 3.0]);
    let vocabulary = crate::vocabulary::metadata().kv("tokenizer.chat_template", "{{ messages[0].content }}");
    let embedders = embedders();
    let models = ARCHITECTURES.iter().cloned().chain(embedders.iter().map(Architecture::build));
    let files = [values, vocabulary].into_iter().chain(tiny_models()).chain(models).chain(encoders());
    files.map(|file| header(&file)).filter(|file| file.len() <= MOST).collect()
}

/// Models with a vocabulary, so that they can run.
pub fn engine() -> Vec<Vec<u8>> {
    let served = |mut file: GgufBuilder| {
        let rows = file.tensors.iter().find(|tensor| tensor.name == "token_embd.weight").map_or(8, |tensor| tensor.dims[1]);
        file.set("tokenizer.ggml.model", "llama");
        file.set("tokenizer.ggml.tokens", (0..rows).map(|id| id.to_string()).collect::<Vec<_>>());
        file.set("tokenizer.ggml.scores", vec![0f32; rows as usize]);
        file
    };
    let models = tiny_models().into_iter().chain(ARCHITECTURES.iter().cloned());
    let files = models.map(served).chain(encoders()).map(|file| header(&file)).filter(|file| file.len() <= MOST);
    files.flat_map(with_lengths).collect()
}

pub fn tokenizer() -> Vec<Vec<u8>> {
    let list = |items: &[&str]| items.iter().map(|item| item.as_bytes()).collect::<Vec<_>>().join(&0xfe);
    let tokens = [
        "<unk>", "<s>", "</s>", "<0x0A>", "▁", "a", "b", "ab", "▁a", "Ġ", "Ġa", "##b", "[UNK]", "[CLS]", "[SEP]", "é", "天", "'s", "1",
        "12",
    ];
    let types = [2u8, 3, 3, 6, 1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 1, 1, 1, 4, 5];
    let per_token: Vec<u8> = types.iter().zip(0u8..).flat_map(|(kind, score)| [*kind, score]).collect();
    let words = "a ab  abé 天's 12\n\t<s>ab</s> [UNK] A\u{301}\u{fdd0}";
    let one = |kind: u8, flags: u8| {
        let head = [kind, flags, 0b10_1011, 2, 3, 1, 0, 0, 0, 0, 15, 14, 0];
        joined(&[&head, &list(&tokens), &list(&["a b", "Ġ a", "▁ a"]), &per_token, words.as_bytes(), b""])
    };
    let mut seeds: Vec<Vec<u8>> = (0..16).flat_map(|kind| [one(kind, 0), one(kind, 0xff)]).collect();
    let charsmap = [b"\x10\0\0\0".as_slice(), &[0, 4, 0, 0, 0x61, 5, 0, 0, 0, 0, 0, 0x80, 1, 0, 0, 0x80], b"b\0"].concat();
    seeds.push(joined(&[&[11, 0x18, 0xff], &list(&["a", "b", "▁"]), b"", &[1, 1, 1, 2, 1, 3], b"a  b a", &charsmap]));
    seeds
}

pub fn tokenizer_json() -> Vec<Vec<u8>> {
    let names = ["llama3", "qwen2", "deepseek-v3", "gpt-4o", "llama2", "gemma", "unigram"];
    let of = |name: &str| serde_json::from_str::<Json>(&golden_text(&format!("tokenizers/{name}.json"))).expect("JSON");
    let words = "The gate opens, it's 1,000 µm wide.\n\n  <|end|> 天気 \u{1f999}";
    let large = names.iter().map(|name| joined(&[of(name)["tokenizer"].to_string().as_bytes(), words.as_bytes()]));
    let words_of = |pre: Json, normalizer: Json| {
        let vocab = json!({"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "a": 3, "##b": 4, "天": 5, "!": 6});
        let model = json!({"type": "WordPiece", "vocab": vocab, "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100});
        let added = json!([{"id": 0, "content": "[UNK]", "special": true}, {"id": 2, "content": "[SEP]", "special": true, "rstrip": true}]);
        let post = json!({"type": "BertProcessing", "cls": ["[CLS]", 1], "sep": ["[SEP]", 2]});
        json!({"model": model, "added_tokens": added, "pre_tokenizer": pre, "normalizer": normalizer, "post_processor": post})
    };
    let bert = words_of(json!({"type": "BertPreTokenizer"}), json!({"type": "BertNormalizer", "lowercase": true}));
    let patterns = [r"\p{N}{1,3}| ?\p{L}+|\s+(?!\S)|\s+", r"(?i:'s|'t)|[^\r\n\p{L}]?\p{L}+|[^a-z]{2,}$"];
    let of_pattern = |pattern: &str| {
        json!({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
                {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]}})
    };
    let small = patterns.iter().map(|pattern| of_pattern(pattern)).chain([bert]);
    large.chain(small.map(|json| joined(&[json.to_string().as_bytes(), b"ab abb a1234 !"]))).filter(|seed| seed.len() <= MOST).collect()
}

/// A conversation with everything that templates read.
fn conversation() -> Json {
    let call = json!({"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Oslo"}}});
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string", "description": "a city"}}, "required": ["city"]});
    json!({"messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather in Oslo?"},
            {"role": "assistant", "content": "", "reasoning_content": "I need it.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": "rain"},
            {"role": "user", "content": "Thanks."}],
        "tools": [{"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": parameters}}],
        "enable_thinking": false})
}

pub fn template() -> Vec<Vec<u8>> {
    let mut paths: Vec<_> = std::fs::read_dir(golden("templates")).expect("templates").flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "jinja"));
    paths.sort();
    let real = paths.iter().map(|path| std::fs::read_to_string(path).expect("a template")).filter(|source| source.len() < 8 << 10);
    let small = [
        "{% macro m(x=1) %}{{ x * 3 ~ 'a'[::-1] }}{% endmacro %}{{ m() }}{% set ns = namespace(n=0) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}",
        "{%- for x in range(3) recursive -%}{{ loop.index0 }}{{ x | tojson(indent=2) }}{% break %}{%- else -%}e{%- endfor -%}",
        "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list | join(', ') | upper | trim }}",
        "{{ {'a': [1, 2.5, none]}.items() | list }}{{ 'x'.split(',') }}{{ 'a' in 'abc' }}{{ 7 // 2 % 3 ** 2 - 1 }}",
        "{{ messages[0]['content'][1:] }}",
        "{% generation %}{{ strftime_now('%d %b %Y') }}{% endgeneration %}{{ '{\"a\": 1}' | from_json }}",
        "{{ raise_exception('no') if false }}",
        "{% set x %}{% filter upper %}a{% endfilter %}{% endset %}{{ x.replace('A', 'b').strip().startswith('b') is true }}",
        "{% raw %}{{{% endraw %}",
        "{% call(u) m2() %}{{ u }}{% endcall %}{# comment #}{% with a = 1 %}{{ a is defined and not a is none or a }}{% endwith %}",
    ];
    let (all, json) = (real.chain(small.map(str::to_owned)), conversation().to_string());
    all.map(|source| joined(&[source.as_bytes(), json.as_bytes()])).collect()
}

pub fn schema() -> Vec<Vec<u8>> {
    let schemas = [
        json!({"type": "object", "properties": {"a": {"type": "string", "minLength": 1, "maxLength": 5}, 
            "b": {"type": "integer", "minimum": -3, "maximum": 12, "multipleOf": 3}}, "required": ["a"], "additionalProperties": false}),
        json!({"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 1, "maxItems": 3,
            "$defs": {"x": {"enum": ["a", 1, null, {"b": []}]}}}),
        json!({"anyOf": [{"const": "x"}, {"type": ["boolean", "null"]}], "$schema": "http://json-schema.org/draft-07/schema#"}),
        json!({"allOf": [{"type": "object", "patternProperties": {"^a+$": {"type": "number"}}},
            {"properties": {"aa": {"exclusiveMinimum": 0.5}}}]}),
        json!({"oneOf": [{"type": "string", "format": "date-time"}, {"type": "string", "pattern": "^[a-z]{2,4}(x|y)?$"}]}),
        json!({"type": "array", "prefixItems": [{"type": "string", "format": "uuid"}, true], "items": false}),
        json!({"$ref": "#/definitions/n", "definitions": {"n": {"type": "object", "properties": {"next": {"$ref": "#/definitions/n"}}}}}),
        json!({"type": "object", "minProperties": 1, "propertyNames": {"pattern": "a"}, "unevaluatedProperties": false,
            "not": {"required": ["b"]}}),
        json!({"if": {"type": "string"}, "then": {"format": "ipv4"}, "else": {"type": "number", "exclusiveMaximum": 7.25}, "title": "t"}),
        json!({"type": "string", "format": "email", "description": "d", "default": "x", "examples": ["y"]}),
        json!({"type": "object", "required": ["a", "b"], "x-guidance": {"lenient": true}, "dependentRequired": {"a": ["b"]}}),
    ];
    let choices = [0u8, 3, 1, 7, 2, 9, 30, 60, 1, 1, 5, 8];
    schemas.iter().map(|schema| joined(&[&choices, schema.to_string().as_bytes()])).collect()
}

pub fn grammar() -> Vec<Vec<u8>> {
    let regexes = [r"[a-z]{2,5}(\d+|x?y)*", r"(?i)ab|c\w\s.", r"\p{L}+[^a-c]\x41\u0042", r"^a$", r"(a|(b|(c|d)))+?", r"[\]\-\\]&~"];
    let larks = [
        "start: \"a\" b+ | c?\nb: /[0-9]{1,3}/\nc: \"x\"i",
        "start: word (\",\" word)~1..3\nword: W\nW: /[a-z]+/ & /.{2,4}/\n%ignore / +/",
        "%llguidance {}\nstart: @json\njson: %json {\"type\": \"boolean\"}",
        "start: x[max_tokens=3, stop=\"y\"] <|im_end|>\nx: /.*/\n",
        "?start: expr\nexpr: expr \"+\" term | term\nterm: NUM | \"(\" expr \")\"\nNUM: /[1-9][0-9]*/",
        "start: A B\nA: \"a\" | B\nB: /b/ // comment\n%import common.INT",
        "start[capture=\"n\", temperature=0.5]: %regex {\"substring_words\": \"a b c\"}",
        "start: p::0x0\np::_ : \"a\" p::set_bit(0) %if bit_clear(0) | \"\"",
    ];
    let choices = |kind: u8| [kind, 0, 3, 1, 7, 2, 9, 30, 60, 1, 1, 5, 8];
    let of = |kind: u8, sources: &[&str]| sources.iter().map(|source| joined(&[&choices(kind), source.as_bytes()])).collect::<Vec<_>>();
    [of(0, &regexes), of(1, &larks), of(2, &["yes\nno\nmaybe"])].concat()
}

pub fn request() -> Vec<Vec<u8>> {
    let Json::Object(mut chat) = conversation() else { unreachable!("an object") };
    chat["messages"][2]["tool_calls"][0]["function"]["arguments"] = "{\"city\": \"Oslo\"}".into();
    chat.remove("enable_thinking");
    let fields = json!({"model": "m", "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "seed": -1, "n": 2,
        "stop": ["x"],
        "stream": true, "stream_options": {"include_usage": true}, "logit_bias": {"3": -100}, "presence_penalty": 1,
        "repetition_penalty": 1.1, "user": "u",
        "chat_template_kwargs": {"enable_thinking": false}, "reasoning_effort": "low", "parallel_tool_calls": false, "logprobs": true,
        "top_logprobs": 2, "tool_choice": {"type": "function", "function": {"name": "get_weather"}}, "max_completion_tokens": 5});
    let Json::Object(fields) = fields else { unreachable!("an object") };
    chat.extend(fields.clone());
    let schema = json!({"type": "json_schema", "json_schema": {"name": "s", "strict": true, "schema": {"type": "object"}}});
    let parts =
        json!([{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "assistant", "content": "b", "prefix": true}]);
    let input = json!([{"role": "user", "content": [{"type": "input_text", "text": "a"}]}, {"type": "reasoning", "id": "r", "summary": []},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "x"}, {"type": "item_reference", "id": "i"}]);
    let response = json!({"model": "m", "input": input, "instructions": "i", "tools": [{"type": "function", "name": "f",
        "parameters": {"type": "object"}}], "text": {"format": {"type": "json_object"}}, "reasoning": {"effort": "high"},
        "metadata": {"k": "v"},
        "include": ["message.output_text.logprobs"], "store": false, "truncation": "disabled", "previous_response_id": "p"});
    let bodies = [
        (0, Json::Object(chat.clone())),
        (0, json!({"model": "m", "messages": parts, "response_format": schema, "max_tokens": 9, "stop_token_ids": [1]})),
        (0, json!({"model": "m", "messages": parts, "guided_regex": "a+", "structured_outputs": {"choice": ["a"]}})),
        (1, json!({"model": "m", "prompt": ["a", "b"], "suffix": "s", "echo": false, "logprobs": 3, "best_of": 3, "n": 2})),
        (1, json!({"model": "m", "prompt": [[1, 2], [3]], "max_tokens": 0, "echo": true, "grammar": "start: \"a\""})),
        (2, json!({"model": "m", "input": ["a", "b"], "encoding_format": "base64", "dimensions": 8})),
        (3, response),
        (3, json!({"model": "m", "input": "hi", "max_output_tokens": 3, "stream": true})),
        (4, json!({"prompt": "a", "add_special_tokens": false, "return_token_strs": true})),
        (4, json!({"model": "m", "messages": parts, "tools": []})),
        (5, json!({"tokens": [1, 2.0, 3]})),
        (6, json!({"model": "m", "messages": chat["messages"], "tools": chat["tools"], "add_generation_prompt": true})),
    ];
    let one = |(endpoint, body): &(u8, Json)| {
        (0..3).map(|template| [&[endpoint + 7 * template], body.to_string().as_bytes()].concat()).collect::<Vec<_>>()
    };
    bodies.iter().flat_map(one).collect()
}

pub fn adapter() -> Vec<Vec<u8>> {
    let lora = |file: GgufBuilder, name: &str, [cols, rows]: [u64; 2]| {
        let file = file.tensor_f32(&format!("{name}.lora_a"), &[cols, 2], &vec![0.1; 2 * cols as usize]);
        file.tensor_f32(&format!("{name}.lora_b"), &[2, rows], &vec![0.1; 2 * rows as usize])
    };
    let head = GgufBuilder::new().kv("general.type", "adapter").kv("general.architecture", "llama").kv("adapter.type", "lora");
    // The table of tokens has the roles of its two halves turned round.
    let table = |file: GgufBuilder| {
        let file = file.tensor_f32("token_embd.weight.lora_a", &[2, 8], &[0.1; 16]);
        file.tensor_f32("token_embd.weight.lora_b", &[2, 32], &[0.1; 64])
    };
    let file = table(lora(head, "blk.0.attn_q.weight", [32, 32])).kv("adapter.lora.alpha", 4f32);
    let vector = GgufBuilder::new().kv("general.architecture", "controlvector").kv("controlvector.model_hint", "llama");
    let vector = vector.kv("controlvector.layer_count", 1i32).tensor_f32("direction.1", &[32], &[0.5; 32]);
    let of = |file: GgufBuilder| [&[0], file.build().as_slice()].concat();
    let folder = |config: Json, tensors: &[(&str, [usize; 2])]| {
        let (mut header, mut at) = (serde_json::Map::new(), 0);
        for (name, shape) in tensors {
            let end = at + 4 * shape[0] * shape[1].max(1);
            let shape = if shape[1] == 0 { json!([shape[0]]) } else { json!(shape) };
            header.insert(format!("base_model.model.{name}"), json!({"dtype": "F32", "shape": shape, "data_offsets": [at, end]}));
            at = end;
        }
        let header = Json::Object(header).to_string();
        let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0x3d; at]].concat();
        [&[1], joined(&[config.to_string().as_bytes(), &file]).as_slice()].concat()
    };
    let config = |dora: bool| {
        json!({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "use_dora": dora, "use_rslora": true, "bias": "none",
            "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.(0|1).x": 3}, "modules_to_save": null})
    };
    let (a, b, m) = ("lora_A.weight", "lora_B.weight", "lora_magnitude_vector");
    let q = |end: &str| format!("model.layers.0.self_attn.q_proj.{end}");
    let dora = [(q(a), [2, 32]), (q(b), [32, 2]), (q(m), [32, 0])];
    let dora: Vec<_> = dora.iter().map(|(name, shape)| (name.as_str(), *shape)).collect();
    let saved =
        [("lm_head.weight", [8, 32]), ("model.embed_tokens.lora_embedding_A", [2, 8]), ("model.embed_tokens.lora_embedding_B", [32, 2])];
    vec![of(file), of(vector), folder(config(true), &dora), folder(config(false), &saved)]
}

pub fn picture() -> Vec<Vec<u8>> {
    let data: Json = serde_json::from_str(&packed_text("images/decoding.json.gz")).expect("JSON");
    let file = |case: &Json| STANDARD.decode(case["file"].as_str().expect("a file")).expect("base64");
    data["files"].as_array().expect("files").iter().map(file).collect()
}

pub fn packed() -> Vec<Vec<u8>> {
    let text = br#"{"model": "m", "messages": [{"role": "user", "content": "hello hello hello hello"}]}"#;
    let gzip = |level| {
        let mut encoder = GzEncoder::new(vec![0], level);
        encoder.write_all(text).expect("memory");
        encoder.finish().expect("memory")
    };
    let zlib = |level| {
        let mut encoder = ZlibEncoder::new(vec![1], level);
        encoder.write_all(text).expect("memory");
        encoder.finish().expect("memory")
    };
    let two = [gzip(Compression::fast()), gzip(Compression::none())[1..].to_vec()].concat();
    let zstd = [vec![2], zstd::encode_all(&text[..], 3).expect("memory")].concat();
    vec![gzip(Compression::best()), gzip(Compression::none()), zlib(Compression::best()), zlib(Compression::none()), two, zstd]
}

pub fn pull() -> Vec<Vec<u8>> {
    let oid = "0".repeat(64);
    let files = ["m-Q4_K_M.gguf", "m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf", "mmproj-f16.gguf", "x/m-Q4_K_M.gguf"];
    let page: Vec<Json> =
        files.iter().map(|path| json!({"type": "file", "path": path, "size": 9, "lfs": {"oid": oid, "size": 99}})).collect();
    let page = Json::from(page).to_string();
    let of = |kind: u8, parts: &[&str]| {
        let parts: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
        [&[kind], joined(&parts).as_slice()].concat()
    };
    let part = json!({"name": "model-00001-of-00002.gguf", "sha256": oid, "size": 7});
    let source = json!({"type": "hf", "repo": "a/b", "quant": "Q4_K_M", "revision": "main"});
    let manifest = json!({"id": "a:b", "source": source, "sha256": oid, "size": 14, "parts": [part, part], "date": 1});
    vec![
        of(0, &[&page, "", ""]),
        of(0, &[&page, "", "q8_0"]),
        of(0, &[&page, files[1], ""]),
        of(0, &[r#"[{"type": "file", "path": "model.safetensors"}]"#, "", ""]),
        of(1, &["<https://hub.example/x?cursor=a>; rel=\"next\", <https://hub.example/y>; rel=\"prev\""]),
        of(2, &["https://cdn.example/file?x=1#y", ""]),
        of(2, &["//cdn.example:8443/file", ""]),
        of(2, &["../file", "https://cdn.example/a/b"]),
        of(2, &["?x", "https://[::ffff:127.0.0.1]:443/a"]),
        of(3, &[&manifest.to_string()]),
    ]
}

pub fn config() -> Vec<Vec<u8>> {
    let of = |kind: u8, text: &str| [&[kind], text.as_bytes()].concat();
    let models = "[[models]]\nid = \"a:b\"\naliases = [\"c\"]\nsource = { type = \"hf\", repo = \"a/b\", quant = \"Q4_K_M\" }\n\
        context = \"auto\"\n\
        sampling = { temperature = 0.5 }\n";
    let key =
        format!("[[keys]]\nname = \"ci\"\nsha256 = \"{}\"\ntenant = \"t\"\nmodels = [\"m\"]\nrequests_per_minute = 9\n", "0".repeat(64));
    vec![
        of(0, include_str!("../../config/default.toml")),
        of(0, include_str!("../../config/example.toml")),
        of(0, models),
        of(1, "SERVER__PORT=8080\nENGINE__CONTEXT=auto\nLIMITS__MAX_QUEUE=9\nSERVER__ALLOWED_HOSTS=a,b"),
        of(2, &key),
        of(3, "penstock=debug,info,penstock[span{a=1,b=2}]=trace"),
        of(4, "hf:a/b:Q4_K_M@main"),
        of(4, "hf:a/b/c.gguf"),
        of(4, "smollm2:135m"),
        of(4, "smolm"),
    ]
}

pub fn modelfile() -> Vec<Vec<u8>> {
    let of = |kind: u8, text: &str| [&[kind], text.as_bytes()].concat();
    let file = "# Mario\nFROM smollm2:135m\nPARAMETER temperature 0.5\nPARAMETER stop \"User:\"\nSYSTEM \"\"\"\nYou are Mario.\n\"\"\"\n\
        TEMPLATE {{ .Prompt }}\nMESSAGE user Hi\nLICENSE MIT\n";
    let one = "{{ if .System }}<s>{{ .System }}{{ end }}{{- if .Prompt }} {{ .Prompt }}{{ else if .Suffix }}{{ end }}A: {{ .Response }}\n";
    let all = "{{- range $i, $m := .Messages }}{{ $last := eq (len (slice $.Messages $i)) 1 }}{{ if and (ne .Role \"user\") $last }}\
        {{ $m.Content | printf \"%s!\" }}{{ end }}{{ range .ToolCalls }}{{ .Function.Arguments }}{{ break }}{{ end }}{{ end -}}";
    vec![
        of(0, file),
        of(0, "FROM a\nSYSTEM \"x\ny\""),
        of(1, one),
        of(1, all),
        of(1, "{{/* x */}}{{ with index .Messages 0 }}{{ json .Content }}{{ end }}"),
    ]
}

pub fn answer() -> Vec<Vec<u8>> {
    let answers = [
        "<think>\nwell\n</think>\n\nHello",
        "text<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>\n\
         <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
        "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": [1, \"]\"]}, \"id\": \"123456789\"}]",
        "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Oslo\"}}",
        "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
        "<|tool_call_start|>[f(a=\"x\", b=[1, None], c={'d': True})]<|tool_call_end|>",
        "<invoke name=\"f\"><parameter name=\"a\">1</parameter></invoke>",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.f<|message|>{\"a\": 1}<|call|>",
        "<function=f><parameter=a>\nx\n</parameter></function>",
        "<|python_tag|>f.call(query=\"x\")",
    ];
    let one = |answer: &&str| {
        (0u8..10).flat_map(|kind| [kind, kind + 130]).map(|kind| joined(&[&[kind, 1, 3, 2, 9, 1], answer.as_bytes()])).collect::<Vec<_>>()
    };
    answers.iter().flat_map(one).collect()
}
