//! Finds environment variables that were probably meant as settings: `PENSTOCK_PORT` has one underscore where a setting has two.

use super::layers::setting_names;
use super::sources::{PREFIX, env_origin};

/// The prefix of these variables.
const BEGIN: &str = "PENSTOCK_";
/// Variables that look like a setting, but have a meaning of their own for commands that talk to a server.
const OWN: [&str; 2] = ["PENSTOCK_HOST", "PENSTOCK_API_KEY"];

/// One warning per variable of this process that is no setting, but has the name of one.
pub fn misnamed_variables() -> Vec<String> {
    let pairs = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    warnings(pairs)
}

fn warnings(variables: impl Iterator<Item = (String, String)>) -> Vec<String> {
    let settings = setting_names();
    let mut found = Vec::new();
    for (name, value) in variables.filter(|(name, _)| name.starts_with(BEGIN) && !name.starts_with(PREFIX)) {
        // For a service that is called `penstock`, Kubernetes sets PENSTOCK_PORT=tcp://10.0.0.7:8080.
        if OWN.contains(&name.as_str()) || value.contains("://") {
            continue;
        }
        let rest = name[BEGIN.len()..].to_ascii_lowercase();
        let words: Vec<&str> = rest.split('_').filter(|word| !word.is_empty()).collect();
        let rest = words.join("_");
        let is_meant = |(section, key): &&(String, String)| rest == *key || rest == format!("{section}_{key}");
        let meant: Vec<String> = settings.iter().filter(is_meant).map(|(section, key)| variable(section, key)).collect();
        if !meant.is_empty() {
            found.push(format!("{} is no setting and changes nothing: did you mean {}?", env_origin(&name), meant.join(" or ")));
        }
    }
    found.sort();
    found
}

/// The environment variable of a setting.
fn variable(section: &str, key: &str) -> String {
    format!("{PREFIX}{section}__{key}").to_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_with_one_underscore_is_named_with_the_one_that_was_meant() {
        let told = |name: &str, value: &str| warnings([(name.to_owned(), value.to_owned())].into_iter());
        for (name, meant) in [
            ("PENSTOCK_PORT", "PENSTOCK__SERVER__PORT"),
            ("PENSTOCK_SERVER_PORT", "PENSTOCK__SERVER__PORT"),
            ("PENSTOCK_SERVER__PORT", "PENSTOCK__SERVER__PORT"),
            ("PENSTOCK_CORS_ORIGINS", "PENSTOCK__SERVER__CORS_ORIGINS"),
            ("PENSTOCK_CONTEXT", "PENSTOCK__ENGINE__CONTEXT"),
        ] {
            let expected = format!("environment variable {name} is no setting and changes nothing: did you mean {meant}?");
            assert_eq!(told(name, "1"), [expected]);
        }
    }

    #[test]
    fn other_variables_are_left_alone() {
        let others = [
            ("PENSTOCK__SERVER__PORT", "1"),
            ("PENSTOCK_HOST", "127.0.0.1"),
            ("PENSTOCK_API_KEY", "x"),
            ("PENSTOCK_PORT", "tcp://10.0.0.7:8080"),
            ("PENSTOCK_PORT_8080_TCP_PORT", "8080"),
            ("PENSTOCK_SERVICE_HOST", "10.0.0.7"),
            ("PENSTOCK_BINARY", "x"),
            ("PORT", "1"),
        ];
        assert_eq!(warnings(others.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter()), [""; 0]);
    }
}
