//! The order of the layers, and errors that name key and source.

use std::path::Path;

use super::*;

struct Scene {
    dir: tempfile::TempDir,
    surroundings: ConfigSources,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let surroundings = ConfigSources {
            dir: dir.path().to_owned(),
            file: None,
            env: vec![("HOME".into(), "/home/u".into()), ("OTHER".into(), "x".into())],
        };
        Self { dir, surroundings }
    }

    fn file(mut self, name: &str, text: &str) -> Self {
        std::fs::write(self.dir.path().join(name), text).unwrap();
        if name == "given" {
            self.surroundings.file = Some(self.dir.path().join(name));
        }
        self
    }

    fn env(mut self, key: &str, value: &str) -> Self {
        self.surroundings.env.push((key.into(), value.into()));
        self
    }

    fn load(&self) -> Result<Config, ConfigError> {
        Config::load_from(&self.surroundings, &Overrides::default())
    }

    fn config(&self) -> Config {
        self.load().unwrap_or_else(|error| panic!("{error}"))
    }

    fn error(&self) -> String {
        self.load().expect_err("should be refused").to_string()
    }
}

/// Asserts that the error contains each of `parts`.
fn names(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in {error:?}");
    }
    assert!(!error.contains('\n'), "more than one line: {error:?}");
}

#[test]
fn the_defaults_are_complete() {
    let config = Scene::new().config();
    assert_eq!((config.server.host.to_string().as_str(), config.server.port), ("127.0.0.1", 8080));
    assert_eq!(config.server.models_dir, Path::new("/home/u/.local/share/penstock/models"));
    assert!(config.server.workers >= 1);
    assert_eq!((config.server.drain_seconds, config.server.keep_alive_seconds), (30, 15));
    assert_eq!(config.server.default_models, ["smollm2:135m"]);
    let engine = &config.engine;
    assert_eq!(
        (engine.context, engine.kv_tokens, engine.block_size, engine.max_batch_tokens, engine.max_running),
        (Context::Auto, 0, 32, 0, 0)
    );
    let limits = &config.limits;
    assert_eq!((limits.max_queue, limits.max_body_bytes, limits.max_stop_sequences, limits.max_prompts), (512, 32 << 20, 4, 1024));
    let bodies = |of: &str| Scene::new().env("PENSTOCK__LIMITS__MAX_BODY_BYTES", of).config().limits.max_bodies_bytes;
    assert_eq!((limits.max_bodies_bytes, bodies("1024"), bodies("2097152")), (512 << 20, 16 << 20, 32 << 20));
    assert_eq!((limits.head_timeout_seconds, limits.body_timeout_seconds, limits.max_stored_responses), (5, 30, 1000));
    assert_eq!(find_model(&config.models, "smollm2").unwrap().size, Some(98_362_432));
    assert_eq!(find_model(&config.models, "gemma3").unwrap().id, "gemma3:4b", "a family's name stands for a model that chats");
    let renamed = find_model(&config.models, "gemma3:270m").unwrap();
    assert_eq!((renamed.id.as_str(), renamed.base), ("gemma3:270m-base", true));
    assert!(renamed.hint_for("gemma3:270m").unwrap().contains("`gemma3:270m-base`") && renamed.hint_for("gemma3:270m-base").is_none());
    assert!(renamed.stored_under().eq(["gemma3:270m-base", "gemma3:270m"]));
    assert!(config.server.default_models.iter().all(|name| find_model(&config.models, name).is_some()));
}

#[test]
fn xdg_data_home_moves_the_store_when_it_is_absolute() {
    let dir = |value| Scene::new().env("XDG_DATA_HOME", value).config().server.models_dir;
    assert_eq!(dir("/data"), Path::new("/data/penstock/models"));
    assert_eq!(dir("relative"), Path::new("/home/u/.local/share/penstock/models"));
    assert_eq!(Scene::new().env("PENSTOCK__SERVER__MODELS_DIR", "~/m").config().server.models_dir, Path::new("/home/u/m"));
    let mut homeless = Scene::new();
    homeless.surroundings.env.clear();
    names(&homeless.error(), &["server.models_dir", "HOME"]);
}

#[test]
fn each_layer_overrides_the_one_before() {
    let scene = Scene::new().file("a.toml", "[server]\nport = 1\n[engine]\ncontext = 100\nmax_running = 7");
    assert_eq!(scene.config().server.port, 1);
    let scene = scene.file("b.toml", "[server]\nport = 2");
    assert_eq!(scene.config().server.port, 2);
    let scene = scene.file("given", "server.port = 3");
    assert_eq!(scene.config().server.port, 3);
    let scene = scene.env("PENSTOCK__SERVER__PORT", "4");
    assert_eq!(scene.config().server.port, 4);
    let flags = Overrides {
        host: Some("::1".parse().unwrap()),
        port: Some(5),
        models: vec!["x".into()],
        mmproj: None,
        draft: None,
        adapters: Vec::new(),
        log: Some("warn".into()),
        log_format: None,
        backend: Some(Backend::Cpu),
        threads: Some(3),
        device: Some(2),
        context: Some(Context::Tokens(64)),
        cache_type: Some(CacheType::Q8),
        replicas: Some(3),
    };
    let config = Config::load_from(&scene.surroundings, &flags).unwrap();
    assert_eq!((config.server.host.to_string().as_str(), config.server.port), ("::1", 5));
    assert_eq!(config.server.default_models, ["x"]);
    assert_eq!(
        (config.engine.backend, config.engine.threads, config.engine.context, config.engine.max_running),
        (Backend::Cpu, 3, Context::Tokens(64), 7)
    );
    assert_eq!((config.engine.device, config.engine.cache_type, config.engine.replicas), (2, CacheType::Q8, 3));
}

#[test]
fn the_environment_sets_every_kind_of_value() {
    let config = Scene::new()
        .env("PENSTOCK__SERVER__HOST", "0.0.0.0")
        .env("PENSTOCK__SERVER__DEFAULT_MODELS", "a, b")
        .env("PENSTOCK__ENGINE__PREFIX_CACHE", "false")
        .env("PENSTOCK__ENGINE__BACKEND", "cuda")
        .env("PENSTOCK_LOG", "a single underscore is no setting")
        .config();
    assert_eq!(config.server.host.to_string(), "0.0.0.0");
    assert_eq!(config.server.default_models, ["a", "b"]);
    assert!(!config.engine.prefix_cache);
    assert_eq!(config.engine.backend, Backend::Cuda);
}

#[test]
fn unknown_settings_are_refused_by_name_and_source() {
    names(&Scene::new().file("x.toml", "[server]\nprot = 1").error(), &["x.toml", "server.prot", "port"]);
    names(&Scene::new().file("x.toml", "[sever]\nport = 1").error(), &["x.toml", "`sever`", "server"]);
    names(&Scene::new().file("given", "port = 1").error(), &["given", "`port`"]);
    names(&Scene::new().env("PENSTOCK__SERVER__PROT", "1").error(), &["environment variable PENSTOCK__SERVER__PROT", "server.prot"]);
    names(&Scene::new().env("PENSTOCK__PORT", "1").error(), &["PENSTOCK__PORT", "`port`"]);
    names(&Scene::new().env("PENSTOCK__SERVER__PORT__X", "1").error(), &["PENSTOCK__SERVER__PORT__X", "server.port.x"]);
    names(&Scene::new().env("PENSTOCK__MODELS__X", "1").error(), &["PENSTOCK__MODELS__X"]);
}

#[test]
fn bad_values_are_refused_by_name_and_source() {
    for (text, parts) in [
        ("[server]\nport = 70000", &["server.port", "70000"][..]),
        ("[server]\nport = -1", &["server.port"]),
        ("[server]\nport = \"http\"", &["server.port", "http"]),
        ("[server]\nhost = \"nowhere\"", &["server.host"]),
        ("[server]\ndefault_models = [\"\"]", &["server.default_models"]),
        ("[server]\nlog = \"penstock=loud\"", &["server.log", "penstock=loud"]),
        ("[server]\nvllm_metrics = \"maybe\"", &["server.vllm_metrics"]),
        ("[engine]\nblock_size = 24", &["engine.block_size", "24"]),
        ("[engine]\nblock_size = 16", &["engine.block_size", "between 32 and 256"]),
        ("[engine]\nblock_size = 512", &["engine.block_size", "512"]),
        ("[engine]\nbackend = \"tpu\"", &["engine.backend", "tpu"]),
        ("[engine]\ngpu_memory_fraction = 1.5", &["engine.gpu_memory_fraction", "1.5"]),
        ("[engine]\nstep_timeout_seconds = 0", &["engine.step_timeout_seconds", "0"]),
        ("[engine]\nmax_running = 5000", &["engine.max_running"]),
        ("[limits]\nmax_queue = 0", &["limits.max_queue"]),
        ("[limits]\nmax_body_bytes = 4096\nmax_bodies_bytes = 65535", &["limits.max_bodies_bytes", "16777216", "max_body_bytes"]),
        ("[limits]\nmax_bodies_bytes = 536870912\nmax_body_bytes = 33554433", &["limits.max_bodies_bytes", "33554433"]),
        ("server = 3", &["`server`", "table"]),
        ("[server", &["x.toml"]),
    ] {
        let error = Scene::new().file("x.toml", text).error();
        names(&error, parts);
        names(&error, &["x.toml"]);
    }
    names(&Scene::new().env("PENSTOCK__SERVER__PORT", "http").error(), &["environment variable PENSTOCK__SERVER__PORT", "server.port"]);
    names(&Scene::new().env("PENSTOCK__ENGINE__BLOCK_SIZE", "4").error(), &["PENSTOCK__ENGINE__BLOCK_SIZE", "4 is not between 32 and 256"]);
    let flags = Overrides { context: Some(Context::Tokens(0)), ..Default::default() };
    names(&Config::load_from(&Scene::new().surroundings, &flags).unwrap_err().to_string(), &["--context", "engine.context"]);
    let mut scene = Scene::new();
    scene.surroundings.file = Some("/no/such/file".into());
    names(&scene.error(), &["/no/such/file"]);
}

#[cfg(unix)]
#[test]
fn a_setting_that_is_not_utf8_is_refused() {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    let bad = || OsString::from_vec(vec![0xff]);
    let error = sources::utf8_pairs([("PENSTOCK__SERVER__LOG".into(), bad())].into_iter()).unwrap_err().to_string();
    names(&error, &["PENSTOCK__SERVER__LOG", "UTF-8"]);
    assert_eq!(sources::utf8_pairs([("OTHER".into(), bad())].into_iter()).unwrap(), []);
}

const MINE: &str = "[[models]]\nid = 'mine'\nsource = { type = 'file', path = '~/m.gguf' }\n";

#[test]
fn models_are_merged_by_id() {
    let embedded = Scene::new().config().models.len();
    let config = Scene::new().file("x.toml", MINE).config();
    assert_eq!(config.models.len(), embedded + 1);
    assert_eq!(find_model(&config.models, "mine").unwrap().source, Source::File { path: "/home/u/m.gguf".into() });
    let again = MINE.replace("mine", "smollm2:135m") + "context = 77\n";
    let config = Scene::new().file("x.toml", MINE).file("given", &again).config();
    assert_eq!(config.models.len(), embedded + 1);
    assert_eq!(config.models[0].context, Some(Context::Tokens(77)), "the entry replaces the earlier one in the same position");
    assert!(find_model(&config.models, "smollm2").is_none(), "the aliases of the replaced entry are gone");
}

#[test]
fn an_entry_under_a_former_id_replaces_the_renamed_one() {
    let config = Scene::new().file("x.toml", &MINE.replace("mine", "gemma3:270m")).config();
    let entry = find_model(&config.models, "gemma3:270m").unwrap();
    assert!(entry.id == "gemma3:270m" && !entry.built_in && find_model(&config.models, "gemma3:270m-base").is_none());
}

#[test]
fn bad_models_are_refused() {
    let model = |from: &str, to: &str| Scene::new().file("x.toml", &MINE.replace(from, to)).error();
    names(&Scene::new().file("x.toml", &MINE.repeat(2)).error(), &["x.toml", "`mine`", "two entries"]);
    names(
        &Scene::new().file("x.toml", &(MINE.to_owned() + "aliases = ['gemma3']")).error(),
        &["gemma3:4b", "built-in catalogue", "x.toml"],
    );
    for id in ["../x", "a/../b", "/a", "a//b", "a b", "", ".hidden", "a\\\\b"] {
        names(&model("mine", id), &["x.toml", "must begin with"]);
    }
    let with = |line: &str| Scene::new().file("x.toml", &(MINE.to_owned() + line)).error();
    names(&with("sha256 = '../../x'"), &["x.toml", "mine", "64 hex"]);
    names(&with(&format!("sha256 = '{}'", "g".repeat(64))), &["64 hex"]);
    names(&with("colour = 'red'"), &["x.toml", "mine", "colour"]);
    names(&with("size = -5"), &["x.toml", "mine"]);
    let source = |text: &str| model("{ type = 'file', path = '~/m.gguf' }", text);
    names(&source("{ type = 'ftp', url = 'x' }"), &["x.toml", "mine", "ftp"]);
    names(&source("{ type = 'https', url = 'http://example.com/x' }"), &["mine", "plain http"]);
    names(&source("{ type = 'https', url = 'file:///etc/passwd' }"), &["mine", "not https"]);
    names(&source("{ type = 'https', url = 'https://u:p@example.com/x' }"), &["mine", "malformed"]);
    names(&source("{ type = 'hf', repo = 'a/b', file = '../x' }"), &["mine", "file"]);
    names(&source("{ type = 'hf', repo = 'a/b', file = 'x', revision = 'main/../..' }"), &["mine", "revision"]);
    names(&source("{ type = 'pypi', packages = [{ name = '--index-url', version = '1', member = 'x' }] }"), &["mine", "--index-url"]);
    names(&source("{ type = 'pypi', packages = [{ name = 'a', version = '1 -x', member = 'x' }] }"), &["mine", "version"]);
    names(&source("{ type = 'pypi', packages = [] }"), &["mine", "empty"]);
}

#[test]
fn files_with_the_built_in_names_are_not_read() {
    let junk = "[nonsense]\nx = 1";
    Scene::new()
        .file("default.toml", junk)
        .file("catalogue.toml", junk)
        .file("example.toml", junk)
        .file(".hidden.toml", junk)
        .file("x.txt", junk)
        .config();
}

#[test]
fn the_example_parses_and_names_every_setting_with_its_default() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config");
    let mut scene = Scene::new();
    let defaults = scene.config();
    scene.surroundings.file = Some(root.join("example.toml"));
    let example = scene.config();
    // A model, and a variant of it.
    assert_eq!(example.models.len(), defaults.models.len() + 2);
    let sections =
        |config: &Config| serde_json::json!([config.server, config.engine, config.cache, config.limits, config.storage, config.traces]);
    assert_eq!(sections(&example), sections(&defaults));
    let text = std::fs::read_to_string(root.join("example.toml")).unwrap();
    for section in sections(&defaults).as_array().unwrap() {
        for key in section.as_object().unwrap().keys() {
            assert!(text.lines().any(|line| line.starts_with(&format!("{key} = "))), "{key} is not in the example");
        }
    }
}

#[test]
fn a_context_is_a_number_or_auto() {
    let of = |text: &str| Scene::new().file("a.toml", text).config().engine.context;
    assert_eq!(of("engine.context = 512"), Context::Tokens(512));
    assert_eq!(of("engine.context = 'auto'"), Context::Auto);
    let of_env = |value: &str| Scene::new().env("PENSTOCK__ENGINE__CONTEXT", value);
    assert_eq!((of_env("64").config().engine.context, of_env("auto").config().engine.context), (Context::Tokens(64), Context::Auto));
    for bad in ["0", "-1", "16777217", "much", ""] {
        names(&of_env(bad).error(), &["PENSTOCK__ENGINE__CONTEXT", "engine.context"]);
    }
    names(&Scene::new().file("a.toml", "engine.context = 1.5").error(), &["engine.context", "a number of tokens or \"auto\""]);
}

#[test]
fn every_entry_of_the_catalogue_is_whole_and_families_stand_together() {
    let models = Scene::new().config().models;
    assert!(models.len() >= 40, "{}", models.len());
    let mut families: Vec<&str> = Vec::new();
    let mut names = std::collections::HashSet::new();
    for entry in &models {
        crate::check_entry(entry).unwrap_or_else(|fault| panic!("{}: {fault}", entry.id));
        assert!(entry.built_in && entry.licence.is_some() && entry.max_context.is_some(), "{}", entry.id);
        assert!(entry.size.is_some() || entry.gigabytes.is_some(), "{}: how large?", entry.id);
        assert!(entry.names().all(|(_, name)| names.insert(name)), "{}: a name twice", entry.id);
        let family = entry.family.as_deref().unwrap();
        assert!(entry.id.starts_with(&format!("{family}:")), "{} of {family}", entry.id);
        if families.last() != Some(&family) {
            assert!(!families.contains(&family), "{family} stands in two places");
            families.push(family);
        }
    }
}

/// The number of weights in a name such as `1.7b` or `135m` [billions].
fn billions(name: &str) -> Option<f64> {
    let name = name.to_ascii_lowercase();
    let of = |unit: char, factor: f64| name.strip_suffix(unit)?.parse::<f64>().ok().map(|count| count * factor);
    of('b', 1.0).or_else(|| of('m', 1e-3))
}

/// Not every file of the catalogue has been fetched, so at least no entry may contradict itself.
#[test]
fn the_fields_of_an_entry_of_the_catalogue_agree() {
    let models = Scene::new().config().models;
    let plain = |name: &str| name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    let mut with_family_name = Vec::new();
    for (i, entry) in models.iter().enumerate() {
        let (id, family) = (&entry.id, entry.family.as_deref().unwrap());
        let weights = id.split([':', '-']).rev().find_map(billions);
        assert!(weights.is_some() || id == "nomic-embed-text:v1.5", "{id}: how many weights?");
        assert!(
            entry.size.is_some() != entry.gigabytes.is_some() && entry.size.is_some() == entry.sha256.is_some(),
            "{id}: what is recorded?"
        );
        let bytes = entry.size.map_or(entry.gigabytes.unwrap_or_default(), |size| size as f64 / 1e9);
        let each = weights.map_or(1.0, |weights| bytes / weights);
        assert!((0.5..1.2).contains(&each), "{id}: {bytes} GB for {weights:?} billions of weights");
        assert!(entry.max_context.is_some_and(|context| context >= 2048 && context.is_power_of_two()), "{id}: {:?}", entry.max_context);
        assert!(models[..i].iter().all(|other| other.source != entry.source), "{id}: another entry has its source");
        with_family_name.extend(entry.aliases.iter().any(|alias| alias == family).then_some(family));
        let Source::Hf { repo, file: Some(file), quant: None, .. } = &entry.source else { continue };
        assert!(plain(repo).contains(&plain(family)) && plain(file).contains(&plain(family)), "{id}: {repo}/{file} is of another family");
        let of_source: Vec<f64> = repo.split('-').chain(file.split('-')).filter_map(billions).collect();
        assert!(of_source.iter().all(|&told| Some(told) == weights), "{id}: {repo}/{file} has another size");
        let text = format!("{repo}-{file}").to_ascii_lowercase();
        let says = |words: &[&str]| text.split(['-', '.', '/']).any(|part| words.contains(&part));
        assert!(!(entry.base && says(&["instruct", "it", "chat"])) && (entry.base || !says(&["base", "pt"])), "{id}: is it a base model?");
        let is_type = |part: &str| ["Q4_K_M", "Q8_0"].iter().any(|name| part.eq_ignore_ascii_case(name));
        let part = file.strip_suffix(".gguf").and_then(|name| name.rsplit(['-', '.']).next());
        assert!(part.is_some_and(is_type), "{id}: of which type is {file}?");
    }
    let mut families: Vec<&str> = models.iter().filter_map(|entry| entry.family.as_deref()).collect();
    families.dedup();
    assert_eq!(with_family_name, families, "a family's name alone stands for one of its models");
}

#[test]
fn a_near_name_is_found() {
    let models = Scene::new().config().models;
    let near = |name: &str| crate::nearest_model(models.iter().flat_map(|entry| entry.names()), name);
    assert_eq!(near("smollm2:136m"), Some("smollm2:135m"));
    assert_eq!(near("Smolm2"), Some("smollm2:135m"));
    assert_eq!(near("llama3.2-1b"), Some("llama3.2:1b"));
    for far in ["", "gpt-4o", "xyz", "text-davinci-003", &"smollm2:135m".repeat(10)] {
        assert_eq!(near(far), None, "{far}");
    }
}

#[test]
fn sampling_values_are_checked_and_an_own_entry_is_not_built_in() {
    let entry = |sampling: &str| {
        let source = "source = { type = 'file', path = 'x.gguf' }";
        Scene::new().file("a.toml", &format!("[[models]]\nid = 'own'\n{source}\nsampling = {sampling}"))
    };
    let config = entry("{ temperature = 0.5, top_k = 7 }").config();
    let own = find_model(&config.models, "own").unwrap();
    assert_eq!((own.sampling.temperature, own.sampling.top_k, own.sampling.top_p, own.built_in), (Some(0.5), Some(7), None, false));
    for (bad, key) in [("{ temperature = 3 }", "temperature"), ("{ top_p = 0 }", "top_p"), ("{ heat = 1 }", "heat")] {
        names(&entry(bad).error(), &["own", key]);
    }
}

#[test]
fn keys_and_what_is_open_are_checked_and_a_wrong_key_is_not_repeated() {
    let hash = "ab".repeat(32);
    let config = Scene::new().env("PENSTOCK__AUTH__KEYS", &format!("ci:{hash}, web:{hash}")).config();
    assert_eq!(config.auth.keys, [format!("ci:{hash}"), format!("web:{hash}")]);
    assert_eq!(config.auth.keys_file, Path::new("/home/u/.local/share/penstock/keys.toml"));
    assert_eq!((config.auth.require_keys, config.auth.open_paths), (RequireKeys::Auto, vec!["/health".to_owned(), "/ready".to_owned()]));
    for (key, value, parts) in [
        ("KEYS", "sk-secret", vec!["no colon", "NAME:SHA256"]),
        ("KEYS", "ci:sk-secret", vec!["hash of `ci`", "64 hex digits"]),
        ("KEYS", "c i:00", vec!["\"c i\""]),
        ("OPEN_PATHS", "/health,/v1/models", vec!["\"/v1/models\" always needs a key", "/metrics"]),
        ("REQUIRE_KEYS", "maybe", vec!["maybe", "auto"]),
        ("TOKENS_PER_MINUTE", "-1", vec!["-1"]),
        ("MAX_CONCURRENT", "1000000000001", vec!["1000000000001 is more than"]),
    ] {
        let error = Scene::new().env(&format!("PENSTOCK__AUTH__{key}"), value).error();
        names(&error, &parts);
        names(&error, &[&format!("PENSTOCK__AUTH__{key}"), &format!("auth.{}", key.to_lowercase())]);
        assert!(!error.contains("sk-secret"), "{error}");
    }
}

#[test]
fn hosts_and_origins_are_checked_and_tls_needs_both_files() {
    names(&Scene::new().env("PENSTOCK__SERVER__ALLOWED_HOSTS", "a.example,b:80").error(), &["server.allowed_hosts", "\"b:80\""]);
    names(&Scene::new().env("PENSTOCK__SERVER__CORS_ORIGINS", "https://a/").error(), &["server.cors_origins", "\"https://a/\""]);
    names(&Scene::new().env("PENSTOCK__SERVER__TLS_CERT", "c.pem").error(), &["server.tls_key", "server.tls_cert is", "both"]);
    let both = Scene::new().file("local.toml", "[server]\ntls_cert = \"~/c.pem\"\ntls_key = \"k.pem\"\n").config();
    assert_eq!((both.server.tls_cert, both.server.tls_key), ("/home/u/c.pem".into(), "k.pem".into()));
}

#[test]
fn a_log_that_is_no_level_is_named_with_its_setting() {
    names(&Scene::new().file("a.toml", "server.log = 'bogus'").error(), &["a.toml", "server.log", "\"bogus\"", "debug"]);
    names(&Scene::new().env("PENSTOCK__SERVER__LOG", "loud").error(), &["PENSTOCK__SERVER__LOG", "server.log", "\"loud\""]);
    names(&Scene::new().env("PENSTOCK__SERVER__LOG_FORMAT", "xml").error(), &["PENSTOCK__SERVER__LOG_FORMAT", "xml"]);
    let of = |overrides| Config::load_from(&Scene::new().surroundings, &overrides);
    let error = of(Overrides { log: Some("bogus".into()), ..Overrides::default() }).unwrap_err().to_string();
    names(&error, &["--log", "server.log", "\"bogus\""]);
    let config = of(Overrides { log: Some("debug".into()), log_format: Some(LogFormat::Json), ..Overrides::default() }).unwrap();
    assert_eq!((config.server.log.as_str(), config.server.log_format), ("debug", LogFormat::Json));
}

#[test]
fn settings_of_traces_are_checked() {
    let traces = |line: &str| Scene::new().file("a.toml", &format!("[traces]\n{line}"));
    let good = traces("endpoint = 'https://collector.example/v1/traces'\nheaders = ['authorization=Bearer x=y']\nsample = 0.25").config();
    assert_eq!(good.traces.header_pairs().collect::<Vec<_>>(), [("authorization", "Bearer x=y")]);
    for bad in ["collector:4317", "http://", "http://host", "grpc://host/x", "http://host/a b"] {
        names(&traces(&format!("endpoint = '{bad}'")).error(), &["a.toml", "traces.endpoint", bad]);
    }
    names(&traces("sample = 1.5").error(), &["traces.sample", "1.5"]);
    names(&traces("sample = nan").error(), &["traces.sample"]);
    names(&traces("timeout_seconds = 0").error(), &["traces.timeout_seconds"]);
    names(&traces("service = ''").error(), &["traces.service"]);
    let error = traces("headers = ['a=b', 'secret']").error();
    names(&error, &["traces.headers", "entry 2"]);
    assert!(!error.contains("secret"), "{error}");
    names(&traces("colour = 1").error(), &["traces.colour", "endpoint"]);
}

fn mmproj_of(text: &str, id: &str) -> Option<Mmproj> {
    find_model(&Scene::new().file("a.toml", text).config().models, id).unwrap().mmproj.clone()
}

#[test]
fn a_mmproj_is_a_path_a_url_a_file_of_a_repository_or_none() {
    let of = |value: &str| {
        mmproj_of(&format!("[[models]]\nid = \"m\"\nsource = {{ type = \"https\", url = \"https://x/m.gguf\" }}\nmmproj = {value}"), "m")
    };
    assert_eq!(of("\"none\""), Some(Mmproj::None));
    let file = |value: &str| match of(value) {
        Some(Mmproj::File(MmprojFile { source, sha256, size })) => (source, sha256, size),
        other => panic!("{other:?}"),
    };
    assert_eq!(file("\"~/p.gguf\"").0, Source::File { path: "/home/u/p.gguf".into() });
    let hub = |revision: &str| Source::Hf { repo: "o/r".into(), file: Some("sub/p.gguf".into()), quant: None, revision: revision.into() };
    assert_eq!(file("\"hf:o/r/sub/p.gguf\"").0, hub("main"));
    assert_eq!(file("\"hf:o/r/sub/p.gguf@v1\"").0, hub("v1"));
    let digest = "AB".repeat(32);
    let table = format!("{{ file = \"https://x/p.gguf\", sha256 = \"{digest}\", size = 7 }}");
    assert_eq!(file(&table), (Source::Https { url: "https://x/p.gguf".into() }, Some(digest.to_lowercase()), Some(7)));
    for value in ["\"none\"", "\"~/p.gguf\"", "\"hf:o/r/p.gguf@v1\"", &table] {
        let known = of(value).unwrap();
        let text = serde_json::to_string(&known).unwrap();
        assert_eq!(serde_json::from_str::<Mmproj>(&text).unwrap(), known, "{text}");
    }
}

#[test]
fn a_variant_has_the_mmproj_of_its_base() {
    let base = "[[models]]\nid = 'm'\nsource = { type = 'file', path = '/m.gguf' }\nmmproj = '/p.gguf'\n";
    let text = &format!("{base}[[models]]\nid = 'v'\nof = 'm'\n");
    assert_eq!(mmproj_of(text, "v").unwrap().path(), Some(Path::new("/p.gguf")));
    let both = format!("{text}mmproj = \"none\"");
    names(&Scene::new().file("a.toml", &both).error(), &["`v`", "`mmproj` describes the weights"]);
}

#[test]
fn a_wrong_mmproj_is_refused_with_the_name_of_its_entry() {
    let own = "{ type = \"file\", path = \"/m.gguf\" }";
    let hub = "{ type = \"hf\", repo = \"o/r\" }";
    for (source, value, words) in [
        (own, "\"hf:o/r/p.gguf\"", "a file of your own"),
        (own, "{ file = \"/p.gguf\", size = 3 }", "files that are fetched"),
        (own, "\"\"", "the path is empty"),
        (own, "3", "expected \"none\", a path"),
        (hub, "\"http://example.com/p.gguf\"", "use https"),
        (hub, "\"hf:o/r\"", "file"),
        (hub, "\"hf:o/../p.gguf\"", "repo"),
        (hub, "\"hf:o/r/p.bin\"", "must end in .gguf"),
        (hub, "{ file = \"hf:o/r/p.gguf\", sha256 = \"12\" }", "64 hex digits"),
        (hub, "{ file = \"hf:o/r/p.gguf\", sise = 12 }", "sise"),
    ] {
        let text = format!("[[models]]\nid = \"m\"\nsource = {source}\nmmproj = {value}");
        names(&Scene::new().file("a.toml", &text).error(), &["a.toml", "m", words]);
    }
}

#[test]
fn the_flag_for_a_mmproj_stands_beside_one_file() {
    let of = |models: &[&str]| {
        let models = models.iter().map(|name| (*name).to_owned()).collect();
        let flags = Overrides { models, mmproj: Some("p.gguf".parse().unwrap()), ..Overrides::default() };
        Config::load_from(&Scene::new().surroundings, &flags).map(|config| config.mmproj).map_err(|error| error.to_string())
    };
    assert_eq!(of(&["./m.gguf"]).unwrap().unwrap().path(), Some(Path::new("p.gguf")));
    for (models, words) in [(&[][..], "--model FILE.gguf"), (&["gemma3:4b"], "in its entry"), (&["a.gguf", "b.gguf"], "2 models are named")]
    {
        names(&of(models).unwrap_err(), &["--mmproj", words]);
    }
}

#[test]
fn a_draft_model_belongs_to_one_model_and_excludes_heads() {
    let entry = |fields: &str| format!("[[models]]\nid = 'm'\nsource = {{ type = 'file', path = '/m.gguf' }}\n{fields}\n");
    let draft_of = |text: &str, id: &str| find_model(&Scene::new().file("a.toml", text).config().models, id).unwrap().draft.clone();
    assert_eq!(draft_of(&entry("draft = 'small'"), "m").as_deref(), Some("small"));
    assert_eq!(draft_of(&entry("draft = '~/s.gguf'"), "m").as_deref(), Some("/home/u/s.gguf"));
    let variant = format!("{}[[models]]\nid = 'v'\nof = 'm'\n", entry("draft = 'small'"));
    assert_eq!(draft_of(&variant, "v").as_deref(), Some("small"));
    for (text, words) in [
        (entry("draft = ' '"), "draft is empty"),
        (entry("draft = 'small'\ndrafts = 'heads'"), "takes the place of a head"),
        (format!("{variant}draft = 'other'"), "`draft` describes the weights"),
    ] {
        names(&Scene::new().file("a.toml", &text).error(), &["a.toml", words]);
    }
    let of = |models: &[&str]| {
        let models = models.iter().map(|name| (*name).to_owned()).collect();
        let flags = Overrides { models, draft: Some("small".into()), ..Overrides::default() };
        Config::load_from(&Scene::new().surroundings, &flags).map(|config| config.draft).map_err(|error| error.to_string())
    };
    assert_eq!(of(&["m"]).unwrap().as_deref(), Some("small"));
    names(&of(&[]).unwrap_err(), &["--draft", "--model"]);
    names(&of(&["a", "b"]).unwrap_err(), &["--draft", "2 models are named"]);
}
