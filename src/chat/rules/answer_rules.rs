//! [`AnswerRules`]: relaxes tools' schemas until the rules of an answer can be followed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{RuleError, Rules};
use crate::relaxed_schemas::{Relaxation, loosened};
use crate::subject::Subject;
use crate::tools::Tools;
use grammar::GrammarError;
use logits::Grammar;

/// The most tries to relax single tools. Each try compiles tools one by one to find the one at fault.
const MAX_TRIES: usize = 8;
/// The longest time spent on relaxing single tools.
const MAX_TIME: Duration = Duration::from_secs(4);

/// The rules of an answer.
pub struct AnswerRules {
    /// `None`: the model may write anything.
    pub grammar: Option<Arc<dyn Grammar>>,
    /// The tools with the schemas that the rules follow, if they differ from the tools' own.
    pub tools: Option<Tools>,
    /// The names of tools that are not strict and whose schemas had to be relaxed, each with the reason.
    pub loosened: Vec<(String, String)>,
}

impl Rules<'_> {
    /// Compiles the rules, and relaxes schemas of tools that are not strict until they can be followed. May take seconds: call this off the
    /// event loop.
    ///
    /// # Errors
    /// A format or the schema of a strict tool cannot be followed.
    pub fn followed(&self) -> Result<AnswerRules, RuleError> {
        let Some(given) = self.tools else {
            return Ok(AnswerRules { grammar: self.grammar()?, tools: None, loosened: Vec::new() });
        };
        let mut loose = Loose::new(given);
        loop {
            match (Rules { tools: Some(&loose.tools), ..*self }).grammar() {
                Ok(grammar) => {
                    let tools = Some(loose.tools).filter(|tools| tools != given);
                    return Ok(AnswerRules { grammar, tools, loosened: loose.reasons });
                }
                Err(error) => loose.loosen(given, error)?,
            }
        }
    }
}

struct Loose {
    tools: Tools,
    /// Each tool's relaxation, by the tool's index.
    steps: Vec<Relaxation>,
    reasons: Vec<(String, String)>,
    num_tries: usize,
    start: Instant,
}

impl Loose {
    fn new(given: &Tools) -> Self {
        let steps = vec![Relaxation::Followable; given.tools.len()];
        let mut loose = Self { tools: given.clone(), steps, reasons: Vec::new(), num_tries: 0, start: Instant::now() };
        for i in 0..given.tools.len() {
            loose.set(given, i, Relaxation::Followable, "it has keywords that no grammar follows");
        }
        loose
    }

    /// Relaxes a tool's schema. Returns whether the schema has changed.
    fn set(&mut self, given: &Tools, i: usize, step: Relaxation, why: &str) -> bool {
        self.steps[i] = step;
        let tool = &given.tools[i];
        let Some(schema) = tool.parameters.as_ref().filter(|_| !tool.strict) else { return false };
        let schema = Some(loosened(schema, step));
        let changes = self.tools.tools[i].parameters != schema;
        if changes {
            self.tools.tools[i].parameters = schema;
            self.reasons.push((tool.name.clone(), why.to_owned()));
        }
        changes
    }

    /// Relaxes the tools that an error may be about.
    fn loosen(&mut self, given: &Tools, error: RuleError) -> Result<(), RuleError> {
        self.num_tries += 1;
        let is_enough = self.num_tries > MAX_TRIES || self.start.elapsed() > MAX_TIME;
        let (all, step) = match (&error.subject, &error.error) {
            (_, GrammarError::Busy) => return Err(error),
            (Subject::Tools | Subject::ToolParameters(_), GrammarError::Expensive(_)) => (true, Some(Relaxation::Open)),
            (Subject::ToolParameters(i), _) if given.tools[*i].strict => return Err(error),
            (Subject::ToolParameters(_), _) if is_enough => (true, Some(Relaxation::Open)),
            (Subject::ToolParameters(_), _) => (false, None),
            (Subject::Tools, _) => (true, is_enough.then_some(Relaxation::Open)),
            _ => return Err(error),
        };
        let which = match error.subject {
            Subject::ToolParameters(i) if !all => i..i + 1,
            _ => 0..given.tools.len(),
        };
        let (why, mut has_changed) = (error.error.to_string(), false);
        for i in which {
            let mut changes = false;
            // The next looser form may be the same.
            while !changes && self.steps[i] < Relaxation::Open {
                changes = self.set(given, i, step.unwrap_or_else(|| self.steps[i].next()), &why);
            }
            has_changed |= changes;
        }
        if has_changed { Ok(()) } else { Err(error) }
    }
}
