//! Settings of a chat, which `/set` changes, `/show` shows and `/save` keeps.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::chat::Conversation;
use crate::config::nearest_model;
use crate::logits::{SamplingChoice, SamplingParams};
use crate::serving::{Budget, Options};

/// The temperature of a model without a recommended one.
const TEMPERATURE: f32 = 0.7;
const EFFORTS: [&str; 6] = ["none", "minimal", "low", "medium", "high", "xhigh"];
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 1024;

/// The settings, with the values that each takes.
const NAMES: [(&str, &str); 17] = [
    ("system", "instructions before the conversation"),
    ("think", "on, off, or none, minimal, low, medium, high, xhigh"),
    ("temperature", "0 to 2; 0 always picks the likeliest token"),
    ("top_k", "the number of tokens to choose from; 0 is off"),
    ("top_p", "above 0, to 1; 1 is off"),
    ("min_p", "0 to 1; 0 is off"),
    ("presence_penalty", "-2 to 2"),
    ("frequency_penalty", "-2 to 2"),
    ("repetition_penalty", "above 0, to 10; 1 is off"),
    ("seed", "the same seed gives the same answers"),
    ("max_tokens", "the most tokens per answer"),
    ("stop", "a text that ends an answer; several between quotation marks"),
    ("verbose", "on or off: speed and tokens of each answer"),
    ("wordwrap", "on or off"),
    ("plain", "on or off: show answers without rendering their Markdown"),
    ("history", "on or off: keep what is typed"),
    ("nothing", "forget all of this"),
];

/// The values of `think`.
pub const THINKING: [&str; 8] = ["on", "off", "none", "minimal", "low", "medium", "high", "xhigh"];

/// The names of all settings.
pub fn names() -> impl Iterator<Item = &'static str> {
    NAMES.iter().map(|(name, _)| *name)
}

/// Names of the same settings in other programs.
const OTHER_NAMES: [(&str, &str); 4] =
    [("num_predict", "max_tokens"), ("repeat_penalty", "repetition_penalty"), ("thinking", "think"), ("reasoning_effort", "think")];

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    pub system: Option<String>,
    /// `on`, `off`, or a level. None: the template's default.
    pub think: Option<String>,
    pub sampling: SamplingChoice,
    pub seed: Option<u64>,
    pub max_tokens: Option<u32>,
    pub stop: Vec<String>,
    #[serde(skip)]
    pub verbose: bool,
    #[serde(skip)]
    pub wordwrap: bool,
    #[serde(skip)]
    pub history: bool,
    #[serde(skip)]
    pub plain: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            system: None,
            think: None,
            sampling: SamplingChoice::default(),
            seed: None,
            max_tokens: None,
            stop: Vec::new(),
            verbose: false,
            wordwrap: true,
            history: true,
            plain: false,
        }
    }
}

impl Settings {
    /// Applies `text`, a name and a value. Returns the message for the user.
    ///
    /// # Errors
    /// There is no such setting, or it does not take the value. Nothing changes then.
    pub fn set(&mut self, text: &str) -> Result<String, String> {
        let (name, value) = split(text);
        // Users of other programs type `/set parameter temperature 1`.
        let (name, value) = if name == "parameter" { split(value) } else { (name, value) };
        let (name, value) = match name {
            "" => return Ok(usage()),
            "quiet" => ("verbose", "off"),
            "nothink" => ("think", "off"),
            "nowordwrap" => ("wordwrap", "off"),
            "nohistory" => ("history", "off"),
            "verbose" | "think" | "wordwrap" | "history" | "plain" if value.is_empty() => (name, "on"),
            name => (OTHER_NAMES.iter().find(|(other, _)| *other == name).map_or(name, |(_, known)| known), value),
        };
        if name == "nothing" {
            let Self { verbose, wordwrap, history, plain, .. } = *self;
            *self = Self { verbose, wordwrap, history, plain, ..Self::default() };
            return Ok("all settings have the model's defaults again".to_owned());
        }
        if value.is_empty() && NAMES.iter().any(|(known, _)| *known == name) {
            let takes = NAMES.iter().find(|(known, _)| *known == name).map_or("", |(_, takes)| takes);
            return Err(format!("{name} takes a value ({takes}), or `default`"));
        }
        self.change(name, value)?;
        Ok(format!("{name} is {}", if value == "default" { "the model's default again".into() } else { self.shown(name) }))
    }

    fn change(&mut self, name: &str, value: &str) -> Result<(), String> {
        let given = Some(value).filter(|value| *value != "default");
        let number = |least: f32, most: f32, open: bool| match given {
            None => Ok(None),
            Some(text) => match text.parse::<f32>().ok().filter(|x| (least..=most).contains(x) && !(open && *x == least)) {
                Some(x) => Ok(Some(x)),
                None => Err(format!("{name} is a number {} {least} to {most}, not `{text}`", if open { "above" } else { "from" })),
            },
        };
        let sampling = &mut self.sampling;
        match name {
            "system" => self.system = given.map(str::to_owned),
            "think" => self.think = given.map(think).transpose()?,
            "temperature" => sampling.temperature = number(0.0, 2.0, false)?,
            "top_k" => sampling.top_k = whole(name, given, 0)?,
            "top_p" => sampling.top_p = number(0.0, 1.0, true)?,
            "min_p" => sampling.min_p = number(0.0, 1.0, false)?,
            "presence_penalty" => sampling.presence_penalty = number(-2.0, 2.0, false)?,
            "frequency_penalty" => sampling.frequency_penalty = number(-2.0, 2.0, false)?,
            "repetition_penalty" => sampling.repetition_penalty = number(0.0, 10.0, true)?,
            "seed" => self.seed = given.map(|text| text.parse().map_err(|_| not_whole(name, 0, text))).transpose()?,
            "max_tokens" => self.max_tokens = whole(name, given, 1)?,
            "stop" => self.stop = given.map(stops).transpose()?.unwrap_or_default(),
            "verbose" => self.verbose = switch(name, value)?,
            "wordwrap" => self.wordwrap = value == "default" || switch(name, value)?,
            "history" => self.history = value == "default" || switch(name, value)?,
            "plain" => self.plain = switch(name, value)?,
            unknown => {
                let near = nearest_model(NAMES.iter().map(|(name, _)| (*name, *name)), unknown);
                let hint = near.map_or(String::new(), |near| format!(" (did you mean {near}?)"));
                return Err(format!("there is no setting `{unknown}`{hint}: /set lists them"));
            }
        }
        Ok(())
    }

    fn shown(&self, name: &str) -> String {
        let Self { system, think, sampling, seed, max_tokens, stop, verbose, wordwrap, history, plain } = self;
        let number = |x: Option<f32>| x.map(|x| x.to_string());
        let switch = |on: bool| Some(if on { "on" } else { "off" }.to_owned());
        let value = match name {
            "system" => system.as_ref().map(|text| format!("{text:?}")),
            "think" => think.clone(),
            "temperature" => number(sampling.temperature),
            "top_k" => sampling.top_k.map(|k| k.to_string()),
            "top_p" => number(sampling.top_p),
            "min_p" => number(sampling.min_p),
            "presence_penalty" => number(sampling.presence_penalty),
            "frequency_penalty" => number(sampling.frequency_penalty),
            "repetition_penalty" => number(sampling.repetition_penalty),
            "seed" => seed.map(|seed| seed.to_string()),
            "max_tokens" => max_tokens.map(|most| most.to_string()),
            "stop" if stop.is_empty() => None,
            "stop" => Some(stop.iter().map(|text| format!("{text:?}")).collect::<Vec<_>>().join(" ")),
            "verbose" => switch(*verbose),
            "wordwrap" => switch(*wordwrap),
            "history" => switch(*history),
            "plain" => switch(*plain),
            _ => None,
        };
        value.unwrap_or_else(|| "not set".to_owned())
    }

    /// All settings, one per line. `of_model`: the model's own sampling values.
    pub fn table(&self, of_model: SamplingChoice) -> String {
        let defaults = Self { sampling: of_model, ..Self::default() };
        let line = |(name, _): &(&str, &str)| match (self.shown(name), defaults.shown(name)) {
            (own, other) if own == "not set" && other != "not set" => format!("{name:20}{other} (the model's)\n"),
            (own, _) => format!("{name:20}{own}\n"),
        };
        NAMES.iter().filter(|(name, _)| *name != "nothing").map(line).collect()
    }

    /// The options for generating an answer.
    pub fn options(&self) -> Options {
        let seed = self.seed.unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0);
        let sampling = SamplingParams { temperature: TEMPERATURE, seed, ..SamplingParams::default() };
        let budget = self.max_tokens.map_or(Budget::Rest, Budget::Explicit);
        let chosen = SamplingChoice { seed: self.seed, ..self.sampling };
        Options { chosen: Some(chosen), stop: self.stop.clone(), ..Options::new(sampling, budget) }
    }

    /// Tells the template whether to reason.
    pub fn apply_to(&self, conversation: &mut Conversation) {
        match self.think.as_deref() {
            None => {}
            Some("on") => drop(conversation.variables.insert("enable_thinking".to_owned(), Value::Bool(true))),
            Some("off") => conversation.effort = Some("none".to_owned()),
            Some(level) => conversation.effort = Some(level.to_owned()),
        }
    }

    /// Checks values that come from a file.
    ///
    /// # Errors
    /// `/set` would refuse a value.
    pub fn check(&self) -> Result<(), String> {
        let mut checked = self.clone();
        let plain = NAMES.iter().filter(|(name, _)| !["system", "stop", "nothing"].contains(name));
        for (name, _) in plain {
            let value = self.shown(name);
            if value != "not set" {
                checked.change(name, &value)?;
            }
        }
        check_stops(&self.stop)
    }
}

/// Splits a text into its first word and the rest.
fn split(text: &str) -> (&str, &str) {
    let (word, rest) = text.trim().split_once(char::is_whitespace).unwrap_or((text.trim(), ""));
    (word, rest.trim())
}

fn usage() -> String {
    let lines = NAMES.iter().map(|(name, takes)| format!("/set {name:20}{takes}\n"));
    lines.collect::<String>() + "The value `default` resets a setting."
}

fn think(value: &str) -> Result<String, String> {
    match value {
        "on" | "true" => Ok("on".to_owned()),
        "off" | "false" => Ok("off".to_owned()),
        level if EFFORTS.contains(&level) => Ok(level.to_owned()),
        other => Err(format!("think is on, off or one of {}, not `{other}`", EFFORTS.join(", "))),
    }
}

fn switch(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "on" | "true" => Ok(true),
        "off" | "false" | "default" => Ok(false),
        other => Err(format!("{name} is on or off, not `{other}`")),
    }
}

fn whole(name: &str, given: Option<&str>, least: u32) -> Result<Option<u32>, String> {
    given.map(|text| text.parse().ok().filter(|n| *n >= least).ok_or_else(|| not_whole(name, least, text))).transpose()
}

fn not_whole(name: &str, least: u32, text: &str) -> String {
    format!("{name} is a whole number from {least}, not `{text}`")
}

/// Parses one text, or several between quotation marks.
fn stops(value: &str) -> Result<Vec<String>, String> {
    let texts = match value.starts_with('"') {
        false => vec![value.to_owned()],
        true => serde_json::Deserializer::from_str(value)
            .into_iter::<String>()
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| format!("stop is a text, or several between quotation marks, not `{value}`"))?,
    };
    check_stops(&texts).map(|()| texts)
}

fn check_stops(texts: &[String]) -> Result<(), String> {
    if texts.len() > MAX_STOPS || texts.iter().any(|text| text.is_empty() || text.len() > MAX_STOP_BYTES) {
        return Err(format!("stop takes at most {MAX_STOPS} texts of 1 to {MAX_STOP_BYTES} bytes"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(lines: &[&str]) -> Result<Settings, String> {
        let mut settings = Settings::default();
        lines.iter().try_for_each(|line| settings.set(line).map(drop)).map(|()| settings)
    }

    #[test]
    fn each_setting_takes_its_values() {
        let settings = set(&[
            "temperature 0.5",
            "parameter top_k 40",
            "top_p 0.9",
            "min_p 0.1",
            "presence_penalty -1",
            "frequency_penalty 1",
            "repeat_penalty 1.1",
            "seed 18446744073709551615",
            "num_predict 12",
            "stop \"a b\" \"\\n\"",
            "system Be brief.",
            "nothink",
            "verbose",
            "nowordwrap",
        ]);
        let settings = settings.unwrap();
        let SamplingChoice { temperature, top_k, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty, .. } =
            settings.sampling;
        assert_eq!([temperature, top_p, min_p, repetition_penalty], [Some(0.5), Some(0.9), Some(0.1), Some(1.1)]);
        assert_eq!((top_k, presence_penalty, frequency_penalty), (Some(40), Some(-1.0), Some(1.0)));
        assert_eq!((settings.seed, settings.max_tokens), (Some(u64::MAX), Some(12)));
        assert_eq!(settings.stop, ["a b", "\n"]);
        assert_eq!((settings.system.as_deref(), settings.think.as_deref()), (Some("Be brief."), Some("off")));
        assert!(settings.verbose && !settings.wordwrap && settings.history);
        assert_eq!(settings.check(), Ok(()));
        let kept: Settings = serde_json::from_value(serde_json::to_value(&settings).unwrap()).unwrap();
        assert_eq!(Settings { verbose: true, wordwrap: false, ..kept }, settings);
    }

    #[test]
    fn a_value_can_be_taken_back() {
        assert_eq!(set(&["temperature 0.5", "seed 7", "temperature default"]).unwrap(), Settings { seed: Some(7), ..Settings::default() });
        assert_eq!(set(&["stop x", "system y", "nothing"]).unwrap(), Settings::default());
    }

    #[test]
    fn a_wrong_value_is_named_and_changes_nothing() {
        let cases = [
            ("temperature 3", "temperature is a number from 0 to 2, not `3`"),
            ("temperature NaN", "not `NaN`"),
            ("top_p 0", "above 0 to 1"),
            ("max_tokens 0", "a whole number from 1"),
            ("seed -1", "a whole number from 0"),
            ("think maybe", "not `maybe`"),
            ("verbose loud", "on or off"),
            ("tempreature 1", "did you mean temperature?"),
            ("system", "takes a value"),
            ("stop \"a", "quotation marks"),
        ];
        for (line, words) in cases {
            let mut settings = Settings::default();
            let error = settings.set(line).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
            assert_eq!(settings, Settings::default(), "{line}");
        }
        let wrong = Settings { sampling: SamplingChoice { top_p: Some(7.0), ..SamplingChoice::default() }, ..Settings::default() };
        assert!(wrong.check().unwrap_err().contains("top_p"));
    }
}
