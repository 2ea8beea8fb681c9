//! [`Interpreter`]: renders a syntax tree.

mod calls;
mod expressions;
mod loops;
mod macros;
mod output;
mod scope;
mod statements;

use std::rc::Rc;
use std::sync::Arc;

use self::output::Output;
use self::scope::{Captured, Scope};
use crate::clock::Clock;
use crate::failure::{Outcome, limit};
use crate::input::Input;
use crate::syntax::ast::{Statement, Text};
use crate::value::Value;

/// The deepest nesting of expressions, statements and calls during evaluation. The interpreter recurses.
const MAX_DEPTH: usize = 10_000;

pub(crate) struct Interpreter {
    clock: Clock,
    output: Output,
    /// The variables of the template itself.
    root: Rc<Scope>,
    /// Scopes and namespaces that may hold each other in a circle.
    captured: Captured,
    depth: usize,
    /// Whether printed values are escaped.
    escapes: bool,
    /// The name of the variable `loop`.
    loop_name: Text,
}

/// Renders `body` with these variables.
pub(crate) fn render(body: &[Statement], variables: &[(Arc<str>, Input)], clock: Clock) -> Outcome<String> {
    let context = Scope::new(None);
    for (name, value) in variables {
        context.set(name, Value::of_input(value)?);
    }
    let root = Scope::new(Some(&context));
    let (output, captured) = (Output::default(), Captured::default());
    let mut interpreter =
        Interpreter { clock, output, root: Rc::clone(&root), captured, depth: 0, escapes: false, loop_name: "loop".into() };
    let result = interpreter.run(body, &root);
    interpreter.captured.free();
    result.map(|_| interpreter.output.finish())
}

impl Interpreter {
    /// Evaluates one level deeper.
    fn deeper<T>(&mut self, evaluate: impl FnOnce(&mut Self) -> Outcome<T>) -> Outcome<T> {
        if self.depth == MAX_DEPTH {
            return Err(limit("the render calls itself too often"));
        }
        self.depth += 1;
        let result = evaluate(self);
        self.depth -= 1;
        result
    }
}
