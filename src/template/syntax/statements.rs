//! Parses statements from tokens.

use std::sync::Arc;

use super::ast::{Expr, Loop, Macro, Statement, StatementKind, Target, Text};
use super::expressions::TupleEnd;
use super::parser::Parser;
use super::tags::Token;
use crate::failure::Outcome;

type Kind = StatementKind;

impl Parser {
    /// Parses statements up to a tag whose first word is one of `ends`, without reading that tag. If `ends` is empty, parses to the end of
    /// the template.
    pub fn statements(&mut self, ends: &[&str]) -> Outcome<Vec<Statement>> {
        let mut body = Vec::new();
        loop {
            let line = self.line();
            match self.peek().clone() {
                Token::Text(text) => {
                    self.next();
                    body.push(Statement { line, kind: Kind::Text(text.into()) });
                }
                Token::PrintStart => {
                    self.next();
                    let value = self.tuple(TupleEnd::Tag, true, false)?;
                    self.expect(&Token::PrintEnd)?;
                    body.push(Statement { line, kind: Kind::Print(value) });
                }
                Token::TagStart => {
                    self.next();
                    if ends.iter().any(|end| self.is_word(end)) {
                        return Ok(body);
                    }
                    self.nested(|parser| parser.statement(line, ends, &mut body))?;
                    self.expect(&Token::TagEnd)?;
                }
                Token::End if ends.is_empty() => return Ok(body),
                _ => return Err(self.unexpected(&format!("`{{% {} %}}`", ends.join(" %}` or `{% ")))),
            }
        }
    }

    /// Parses the body of a block up to one of `ends`, after the rest of its opening tag.
    fn body(&mut self, ends: &[&str]) -> Outcome<Vec<Statement>> {
        self.skip_sign(":");
        self.expect(&Token::TagEnd)?;
        self.statements(ends)
    }

    /// Like `body`, with one end, which is also read.
    fn whole_body(&mut self, end: &str) -> Outcome<Vec<Statement>> {
        let body = self.body(&[end])?;
        self.next();
        Ok(body)
    }

    fn statement(&mut self, line: u32, ends: &[&str], body: &mut Vec<Statement>) -> Outcome<()> {
        let word = self.name()?;
        let kind = match &*word {
            "if" => self.parse_if()?,
            "for" => self.parse_for()?,
            "set" => self.parse_set()?,
            "with" => self.parse_with()?,
            "macro" => {
                let name = self.target_name()?;
                Kind::Macro(Arc::new(self.parse_macro(name, "endmacro")?))
            }
            "call" => self.parse_call()?,
            "filter" => {
                let filters = self.filters(true)?;
                Kind::FilterBlock(filters, self.whole_body("endfilter")?)
            }
            "block" => self.parse_block()?,
            "autoescape" => {
                let on = self.expression()?;
                Kind::AutoEscape(on, self.whole_body("endautoescape")?)
            }
            // Transformers marks the assistant's text with this tag.
            "generation" => {
                let loops = std::mem::take(&mut self.loops);
                let inner = self.whole_body("endgeneration")?;
                self.loops = loops;
                Kind::Scope(inner)
            }
            "print" => return self.parse_print(line, body),
            "break" | "continue" => {
                if self.loops == 0 {
                    return Err(self.fault(format!("`{word}` is outside a loop")));
                }
                if &*word == "break" { Kind::Break } else { Kind::Continue }
            }
            "include" | "import" | "from" | "extends" => self.parse_other_template(&word)?,
            _ if ends.is_empty() => return Err(self.fault(format!("unknown tag `{word}`"))),
            _ => return Err(self.fault(format!("unknown tag `{word}`, expected `{}` or another tag", ends.join("`, `")))),
        };
        body.push(Statement { line, kind });
        Ok(())
    }

    fn parse_if(&mut self) -> Outcome<StatementKind> {
        let unknown = self.unknown.len();
        let mut branches = Vec::new();
        let mut otherwise = Vec::new();
        loop {
            let test = self.tuple(TupleEnd::Tag, false, false)?;
            let body = self.body(&["elif", "else", "endif"])?;
            branches.push((test, body));
            if self.skip_word("elif") {
                continue;
            }
            if self.skip_word("else") {
                otherwise = self.whole_body("endif")?;
            } else {
                self.next();
            }
            self.unknown.truncate(unknown);
            return Ok(Kind::If(branches, otherwise));
        }
    }

    fn parse_for(&mut self) -> Outcome<StatementKind> {
        let target = self.target(TupleEnd::Word("in"), false)?;
        if assigns(&target, "loop") {
            return Err(self.fault("cannot assign to `loop`, the variable of every loop"));
        }
        self.expect_word("in")?;
        let items = self.tuple(TupleEnd::Word("recursive"), false, false)?;
        let test = if self.skip_word("if") { Some(self.expression()?) } else { None };
        let is_recursive = self.skip_word("recursive");
        self.loops += 1;
        let body = self.body(&["endfor", "else"])?;
        self.loops -= 1;
        let otherwise = if self.skip_word("else") {
            self.whole_body("endfor")?
        } else {
            self.next();
            Vec::new()
        };
        Ok(Kind::For(Arc::new(Loop { target, items, test, is_recursive, body, otherwise })))
    }

    fn parse_set(&mut self) -> Outcome<StatementKind> {
        let target = self.target(TupleEnd::Tag, true)?;
        if self.skip_sign("=") {
            return Ok(Kind::Set(target, self.tuple(TupleEnd::Tag, true, false)?));
        }
        let filters = self.filters(false)?;
        Ok(Kind::SetBlock(target, filters, self.whole_body("endset")?))
    }

    fn parse_with(&mut self) -> Outcome<StatementKind> {
        let mut values = Vec::new();
        while !matches!(self.peek(), Token::TagEnd) && !self.is_sign(":") {
            if !values.is_empty() {
                self.expect_sign(",")?;
            }
            let target = Target::Name(self.target_name()?);
            self.expect_sign("=")?;
            values.push((target, self.expression()?));
        }
        Ok(Kind::With(values, self.whole_body("endwith")?))
    }

    fn parse_macro(&mut self, name: Text, end: &str) -> Outcome<Macro> {
        let (mut params, mut defaults): (Vec<Text>, Vec<Expr>) = (Vec::new(), Vec::new());
        // The parameters of a call block are optional.
        if end == "endmacro" || self.is_sign("(") {
            self.expect_sign("(")?;
            while !self.is_sign(")") {
                if !params.is_empty() {
                    self.expect_sign(",")?;
                }
                params.push(self.target_name()?);
                if self.skip_sign("=") {
                    defaults.push(self.expression()?);
                } else if !defaults.is_empty() {
                    return Err(self.fault("a parameter without a default follows one with a default"));
                }
            }
            self.next();
        }
        Ok(Macro { name, params, defaults, body: Vec::new(), reads_caller: false, reads_varargs: false, reads_kwargs: false })
            .and_then(|head| if end == "endmacro" { self.macro_body(head, end) } else { Ok(head) })
    }

    fn macro_body(&mut self, head: Macro, end: &str) -> Outcome<Macro> {
        let (loops, special) = (std::mem::take(&mut self.loops), self.special.len());
        let body = self.whole_body(end)?;
        self.loops = loops;
        let reads = |name: &str| self.special[special..].iter().any(|read| **read == *name);
        let is_param = |name: &str| head.params.iter().any(|param| **param == *name);
        let (reads_caller, reads_varargs, reads_kwargs) = (reads("caller"), reads("varargs"), reads("kwargs"));
        let defaulted = head.params.len() - head.defaults.len();
        if reads_caller && head.params[..defaulted].iter().any(|param| **param == *"caller") {
            return Err(self.fault("the parameter `caller` of a macro needs a default"));
        }
        Ok(Macro {
            body,
            reads_caller: reads_caller && !is_param("caller"),
            reads_varargs: reads_varargs && !is_param("varargs"),
            reads_kwargs: reads_kwargs && !is_param("kwargs"),
            ..head
        })
    }

    fn parse_call(&mut self) -> Outcome<StatementKind> {
        let head = self.parse_macro("caller".into(), "endcall")?;
        match self.expression()? {
            Expr::Call(callee, arguments) => {
                let body = self.macro_body(head, "endcall")?;
                Ok(Kind::CallBlock(*callee, arguments, Arc::new(body)))
            }
            _ => Err(self.fault("expected a call")),
        }
    }

    fn parse_block(&mut self) -> Outcome<StatementKind> {
        let name = self.name()?;
        if self.blocks.contains(&name) {
            return Err(self.fault(format!("the block `{name}` is defined twice")));
        }
        self.blocks.push(Arc::clone(&name));
        let is_scoped = self.skip_word("scoped");
        if self.is_word("required") {
            return Err(self.fault("a required block needs another template that extends this one"));
        }
        let loops = std::mem::take(&mut self.loops);
        let body = self.whole_body("endblock")?;
        self.loops = loops;
        self.skip_word(&name);
        Ok(if is_scoped { Kind::Scope(body) } else { Kind::Block(body) })
    }

    fn parse_print(&mut self, line: u32, body: &mut Vec<Statement>) -> Outcome<()> {
        let mut is_first = true;
        while !matches!(self.peek(), Token::TagEnd) {
            if !is_first {
                self.expect_sign(",")?;
            }
            is_first = false;
            body.push(Statement { line, kind: Kind::Print(self.expression()?) });
        }
        Ok(())
    }

    /// Skips the rest of the tag without parsing it: the statement fails if it runs.
    fn parse_other_template(&mut self, word: &str) -> Outcome<StatementKind> {
        if matches!(self.peek(), Token::TagEnd) {
            return Err(self.unexpected("the name of a template"));
        }
        while !matches!(self.peek(), Token::TagEnd | Token::End) {
            self.next();
        }
        Ok(Kind::OtherTemplate(match word {
            "include" => "include",
            "import" => "import",
            "from" => "from",
            _ => "extends",
        }))
    }

    /// Parses the target of an assignment: a name, a tuple, or, if `members`, a namespace's attribute.
    fn target(&mut self, end: TupleEnd, members: bool) -> Outcome<Target> {
        let (mut items, mut is_tuple) = (Vec::new(), false);
        loop {
            let ends = match self.peek() {
                Token::TagEnd | Token::Sign(")" | "=") => true,
                Token::Name(name) => matches!(end, TupleEnd::Word(word) if **name == *word),
                _ => false,
            };
            if ends && is_tuple {
                break;
            }
            items.push(self.single_target(members)?);
            if !self.skip_sign(",") {
                break;
            }
            is_tuple = true;
        }
        Ok(if is_tuple || items.len() != 1 { Target::Tuple(items) } else { items.remove(0) })
    }

    fn single_target(&mut self, members: bool) -> Outcome<Target> {
        if self.skip_sign("(") {
            let inner = self.nested(|parser| parser.target(TupleEnd::Tag, members))?;
            self.expect_sign(")")?;
            return Ok(inner);
        }
        let name = self.target_name()?;
        if members && self.skip_sign(".") {
            return Ok(Target::Member(name, self.name()?));
        }
        Ok(Target::Name(name))
    }
}

fn assigns(target: &Target, name: &str) -> bool {
    match target {
        Target::Name(found) => **found == *name,
        Target::Member(..) => false,
        Target::Tuple(items) => items.iter().any(|item| assigns(item, name)),
    }
}
