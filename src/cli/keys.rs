//! `penstock keys`: adds, lists and revokes API keys.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use clap::Subcommand;

use super::output::{columns, print};
use crate::config::{Config, Overrides};
use crate::keys::{Digest, KeyEntry, KeyFile, new_secret};

const EXAMPLES: &str = "Examples:
  penstock keys add alice                                     a key without limits
  penstock keys add ci --tenant research --model smollm2:135m --requests-per-minute 60 --tokens-per-minute 20000
  penstock keys add ops --admin                               one that may also manage the models of a running server
  penstock keys list
  penstock keys revoke ci";

#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct KeysArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Create a key and print it, the only time that it is shown
    Add(Add),
    /// List the keys, without their secrets
    List,
    /// Revoke keys; a running server refuses them within a second
    Revoke {
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

#[derive(clap::Args, Debug)]
struct Add {
    /// The key's name in lists and logs
    name: String,
    /// The tenant that the key belongs to; keys of a tenant share stored objects and the engine's time [default: NAME]
    #[arg(long)]
    tenant: Option<String>,
    /// A model that the key may use; can be given several times [default: every model]
    #[arg(long = "model", value_name = "MODEL")]
    models: Vec<String>,
    /// Requests per minute; 0: no limit [default: auth.requests_per_minute]
    #[arg(long, value_name = "N")]
    requests_per_minute: Option<u64>,
    /// Tokens of prompts and answers per minute; 0: no limit [default: auth.tokens_per_minute]
    #[arg(long, value_name = "N")]
    tokens_per_minute: Option<u64>,
    /// Requests that run or wait at once; 0: no limit [default: auth.max_concurrent]
    #[arg(long, value_name = "N")]
    max_concurrent: Option<u64>,
    /// The weight when tenants share an engine, 1 to 100: 20 gets twice as much as 10 [default: 10]
    #[arg(long, value_name = "N")]
    priority: Option<u32>,
    /// Allow the key to load, unload and fetch models of a running server
    #[arg(long)]
    admin: bool,
}

pub fn run(args: KeysArgs, config: Option<&Path>) -> anyhow::Result<()> {
    let config = Config::load(config, &Overrides::default())?;
    let path = &config.auth.keys_file;
    ensure!(!path.as_os_str().is_empty(), "auth.keys_file is not set, and there is no user's data directory (HOME, XDG_DATA_HOME)");
    let file = KeyFile::new(path);
    match args.command {
        Command::Add(add) => self::add(&file, path, add),
        Command::List => list(&file, &config),
        Command::Revoke { names } => names.iter().try_for_each(|name| {
            file.revoke(name)?;
            print(&format!("revoked {name}\n"))
        }),
    }
}

fn add(file: &KeyFile, path: &Path, add: Add) -> anyhow::Result<()> {
    let Add { name, tenant, models, requests_per_minute, tokens_per_minute, max_concurrent, priority, admin } = add;
    let secret = new_secret()?;
    let models = Some(models).filter(|models| !models.is_empty());
    let created = SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|now| now.as_secs());
    let digest = Digest::of(secret.as_bytes());
    let limits = KeyEntry { requests_per_minute, tokens_per_minute, max_concurrent, ..KeyEntry::new(&name, digest) };
    let entry = KeyEntry { tenant, models, priority, admin, created, ..limits };
    entry.check().map_err(anyhow::Error::msg)?;
    file.add(entry)?;
    // Only the key goes to stdout, so that `KEY=$(penstock keys add NAME)` works.
    crate::telemetry::print_line(&format!("added {name} to {}: this is the only time that the key is shown", path.display()));
    print(&format!("{secret}\n")).with_context(|| format!("the key was not shown: revoke it with `penstock keys revoke {name}`"))
}

fn list(file: &KeyFile, config: &Config) -> anyhow::Result<()> {
    let fixed = config.auth.keys.iter().map(|pair| KeyEntry::from_pair(pair)).collect::<Result<Vec<_>, _>>().map_err(anyhow::Error::msg)?;
    let listed = file.read()?.unwrap_or_default();
    if fixed.is_empty() && listed.is_empty() {
        return print("no keys: `penstock keys add NAME` makes one\n");
    }
    let head = ["NAME", "TENANT", "MODELS", "REQUESTS/MIN", "TOKENS/MIN", "AT ONCE", "PRIORITY", "ADMIN", "CREATED"].map(str::to_owned);
    let auth = &config.auth;
    let row = |key: &KeyEntry, created: String| {
        let limit = |own: Option<u64>, default: u64| match own.unwrap_or(default) {
            0 => "-".to_owned(),
            limit => limit.to_string(),
        };
        [
            key.name.clone(),
            key.tenant().to_owned(),
            key.models.as_ref().map_or("all".to_owned(), |models| models.join(", ")),
            limit(key.requests_per_minute, auth.requests_per_minute),
            limit(key.tokens_per_minute, auth.tokens_per_minute),
            limit(key.max_concurrent, auth.max_concurrent),
            key.priority().to_string(),
            if key.admin { "yes" } else { "-" }.to_owned(),
            created,
        ]
    };
    let rows = listed.iter().map(|key| row(key, key.created.map_or("-".to_owned(), date)));
    let fixed = fixed.iter().map(|key| row(key, "auth.keys".to_owned()));
    print(&columns(&std::iter::once(head).chain(rows).chain(fixed).collect::<Vec<_>>()))
}

/// Formats the day in UTC as YYYY-MM-DD.
fn date(unix_seconds: u64) -> String {
    let time = i64::try_from(unix_seconds).ok().and_then(|seconds| time::OffsetDateTime::from_unix_timestamp(seconds).ok());
    time.map_or("-".to_owned(), |time| time.date().to_string())
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn days_have_dates() {
        assert_eq!([0, 951_782_400, 1_795_391_999, u64::MAX].map(date), ["1970-01-01", "2000-02-29", "2026-11-22", "-"]);
    }
}
