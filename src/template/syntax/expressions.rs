//! Parses expressions from tokens, with Jinja's precedence: `**` is left-associative and binds less tightly than a sign.

use std::sync::Arc;

use num_bigint::BigInt;
use num_traits::ToPrimitive;

use super::ast::{Arguments, Comparison, Expr, Filters, Literal, Operator, Text};
use super::parser::{Parser, SPECIAL};
use super::tags::Token;
use crate::failure::Outcome;

/// The place at which a tuple without brackets ends.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum TupleEnd {
    /// At the end of the tag or at a closing bracket.
    Tag,
    /// At the end of the tag, at a closing bracket, or at this word.
    Word(&'static str),
}

fn integer(number: BigInt) -> Literal {
    match number.to_i64() {
        Some(number) => Literal::Int(number),
        None => Literal::Large(number),
    }
}

impl Parser {
    pub fn expression(&mut self) -> Outcome<Expr> {
        self.nested(Self::conditional)
    }

    fn conditional(&mut self) -> Outcome<Expr> {
        let unknown = self.unknown.len();
        let mut value = self.or()?;
        while self.skip_word("if") {
            let test = self.or()?;
            let otherwise = if self.skip_word("else") { Some(Box::new(self.nested(Self::conditional)?)) } else { None };
            value = Expr::If { test: Box::new(test), then: Box::new(value), otherwise };
            self.unknown.truncate(unknown);
        }
        Ok(value)
    }

    pub fn or(&mut self) -> Outcome<Expr> {
        let mut left = self.and()?;
        while self.skip_word("or") {
            left = Expr::Or(Box::new(left), Box::new(self.and()?));
        }
        Ok(left)
    }

    fn and(&mut self) -> Outcome<Expr> {
        let mut left = self.not()?;
        while self.skip_word("and") {
            left = Expr::And(Box::new(left), Box::new(self.not()?));
        }
        Ok(left)
    }

    fn not(&mut self) -> Outcome<Expr> {
        if self.skip_word("not") { Ok(Expr::Not(Box::new(self.nested(Self::not)?))) } else { self.compare() }
    }

    fn compare(&mut self) -> Outcome<Expr> {
        let first = self.sum()?;
        let mut rest = Vec::new();
        loop {
            let comparison = match self.peek() {
                Token::Sign("==") => Comparison::Eq,
                Token::Sign("!=") => Comparison::Ne,
                Token::Sign("<") => Comparison::Lt,
                Token::Sign("<=") => Comparison::Le,
                Token::Sign(">") => Comparison::Gt,
                Token::Sign(">=") => Comparison::Ge,
                Token::Name(name) if **name == *"in" => Comparison::In,
                Token::Name(name) if **name == *"not" && self.looks_at_word("in") => {
                    self.next();
                    Comparison::NotIn
                }
                _ => break,
            };
            self.next();
            rest.push((comparison, self.sum()?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Compare(Box::new(first), rest) })
    }

    fn binary(&mut self, signs: &[(&str, Operator)], operand: fn(&mut Self) -> Outcome<Expr>) -> Outcome<Expr> {
        let mut left = operand(self)?;
        while let Some((_, operator)) = signs.iter().find(|(sign, _)| self.is_sign(sign)) {
            self.next();
            left = Expr::Binary(*operator, Box::new(left), Box::new(operand(self)?));
        }
        Ok(left)
    }

    fn sum(&mut self) -> Outcome<Expr> {
        self.binary(&[("+", Operator::Add), ("-", Operator::Sub)], Self::concat)
    }

    fn concat(&mut self) -> Outcome<Expr> {
        let first = self.product()?;
        if !self.is_sign("~") {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.skip_sign("~") {
            parts.push(self.product()?);
        }
        Ok(Expr::Concat(parts))
    }

    fn product(&mut self) -> Outcome<Expr> {
        let signs = [("*", Operator::Mul), ("/", Operator::Div), ("//", Operator::FloorDiv), ("%", Operator::Mod)];
        self.binary(&signs, Self::power)
    }

    fn power(&mut self) -> Outcome<Expr> {
        self.binary(&[("**", Operator::Pow)], Self::filtered)
    }

    fn filtered(&mut self) -> Outcome<Expr> {
        let value = self.unary()?;
        self.filters_and_tests(value)
    }

    fn unary(&mut self) -> Outcome<Expr> {
        let value = if self.is_sign("-") || self.is_sign("+") {
            let is_minus = self.is_sign("-");
            self.next();
            Expr::Sign(is_minus, Box::new(self.nested(Self::unary)?))
        } else {
            self.primary()?
        };
        self.postfix(value)
    }

    fn primary(&mut self) -> Outcome<Expr> {
        let literal = match self.peek().clone() {
            Token::Name(name) => {
                self.next();
                return Ok(match &*name {
                    "true" | "True" => Expr::Const(Literal::Bool(true)),
                    "false" | "False" => Expr::Const(Literal::Bool(false)),
                    "none" | "None" => Expr::Const(Literal::None),
                    _ => {
                        if SPECIAL.contains(&&*name) {
                            self.special.push(Arc::clone(&name));
                        }
                        Expr::Name(name)
                    }
                });
            }
            Token::String(first) => {
                let mut text = first;
                self.next();
                while let Token::String(more) = self.peek() {
                    text.push_str(more);
                    self.next();
                }
                return Ok(Expr::Const(Literal::Text(text.into())));
            }
            Token::Int(number) => integer(number),
            Token::Float(number) => Literal::Float(number),
            Token::Sign("(") => {
                self.next();
                let inner = self.nested(|parser| parser.tuple(TupleEnd::Tag, true, true))?;
                self.expect_sign(")")?;
                return Ok(inner);
            }
            Token::Sign("[") => {
                self.next();
                return Ok(Expr::List(self.listed("]", Self::expression)?));
            }
            Token::Sign("{") => {
                self.next();
                return Ok(Expr::Dict(self.listed("}", |parser| {
                    let key = parser.expression()?;
                    parser.expect_sign(":")?;
                    Ok((key, parser.expression()?))
                })?));
            }
            _ => return Err(self.unexpected("an expression")),
        };
        self.next();
        Ok(Expr::Const(literal))
    }

    /// Parses items between commas up to a closing bracket. A trailing comma is allowed.
    fn listed<T>(&mut self, end: &str, item: impl Fn(&mut Self) -> Outcome<T>) -> Outcome<Vec<T>> {
        let mut items = Vec::new();
        while !self.is_sign(end) {
            if !items.is_empty() {
                self.expect_sign(",")?;
                if self.is_sign(end) {
                    break;
                }
            }
            items.push(item(self)?);
        }
        self.next();
        Ok(items)
    }

    /// Parses an expression, or several between commas as a tuple. `conditional`: an item may be `a if b`. `bracketed`: the tuple may be
    /// empty.
    pub fn tuple(&mut self, end: TupleEnd, conditional: bool, bracketed: bool) -> Outcome<Expr> {
        let (mut items, mut is_tuple) = (Vec::new(), false);
        while !self.ends_tuple(end) {
            items.push(if conditional { self.expression()? } else { self.nested(Self::or)? });
            if !self.is_sign(",") {
                break;
            }
            is_tuple = true;
            self.next();
        }
        match items.len() {
            1 if !is_tuple => Ok(items.remove(0)),
            0 if !bracketed => Err(self.unexpected("an expression")),
            _ => Ok(Expr::Tuple(items)),
        }
    }

    fn ends_tuple(&self, end: TupleEnd) -> bool {
        match self.peek() {
            Token::PrintEnd | Token::TagEnd | Token::Sign(")") => true,
            Token::Name(name) => matches!(end, TupleEnd::Word(word) if **name == *word),
            _ => false,
        }
    }

    pub fn postfix(&mut self, mut value: Expr) -> Outcome<Expr> {
        loop {
            value = match self.peek() {
                Token::Sign(".") => {
                    self.next();
                    let token = self.peek().clone();
                    match token {
                        Token::Name(name) => {
                            self.next();
                            Expr::Attribute(Box::new(value), name)
                        }
                        Token::Int(number) => {
                            self.next();
                            Expr::Item(Box::new(value), Box::new(Expr::Const(integer(number))))
                        }
                        _ => return Err(self.unexpected("a name or a number")),
                    }
                }
                Token::Sign("[") => {
                    self.next();
                    self.subscript(value)?
                }
                Token::Sign("(") => Expr::Call(Box::new(value), self.arguments()?),
                _ => return Ok(value),
            };
        }
    }

    fn subscript(&mut self, value: Expr) -> Outcome<Expr> {
        let mut parts: Vec<Option<Expr>> = Vec::new();
        let mut colons = 0;
        let mut current = None;
        if self.is_sign("]") {
            return Err(self.unexpected("an expression"));
        }
        while !self.is_sign("]") {
            if self.skip_sign(":") {
                colons += 1;
                parts.push(current.take());
                continue;
            }
            if current.is_some() {
                if colons > 0 {
                    return Err(self.unexpected("`]`"));
                }
                return self.tuple_subscript(value, current.into_iter().collect());
            }
            current = Some(self.expression()?);
        }
        self.next();
        parts.push(current);
        match (colons, parts.len()) {
            (0, _) => Ok(Expr::Item(Box::new(value), Box::new(parts.remove(0).unwrap_or(Expr::Const(Literal::None))))),
            (1 | 2, _) => {
                parts.resize_with(3, || None);
                let mut parts = parts.into_iter();
                let mut part = || parts.next().flatten();
                Ok(Expr::Slice(Box::new(value), Box::new([part(), part(), part()])))
            }
            _ => Err(self.fault("a slice has at most two colons")),
        }
    }

    /// Parses `a[b, c]`, whose key is a tuple.
    fn tuple_subscript(&mut self, value: Expr, mut items: Vec<Expr>) -> Outcome<Expr> {
        while !self.is_sign("]") {
            self.expect_sign(",")?;
            if self.is_sign("]") {
                break;
            }
            items.push(self.expression()?);
        }
        self.next();
        Ok(Expr::Item(Box::new(value), Box::new(Expr::Tuple(items))))
    }

    fn filters_and_tests(&mut self, mut value: Expr) -> Outcome<Expr> {
        loop {
            value = match self.peek() {
                Token::Sign("|") => {
                    self.next();
                    let (name, arguments) = self.filter()?;
                    Expr::Filter(Box::new(value), name, arguments)
                }
                Token::Name(name) if **name == *"is" => self.test(value)?,
                Token::Sign("(") => Expr::Call(Box::new(value), self.arguments()?),
                _ => return Ok(value),
            };
        }
    }

    fn dotted_name(&mut self) -> Outcome<Text> {
        let mut name = self.name()?;
        while self.skip_sign(".") {
            name = format!("{name}.{}", self.name()?).into();
        }
        Ok(name)
    }

    /// Parses the name of a filter and its arguments, if there are any.
    fn filter(&mut self) -> Outcome<(Text, Arguments)> {
        let line = self.line();
        let name = self.dotted_name()?;
        let arguments = if self.is_sign("(") { self.arguments()? } else { Arguments::default() };
        self.note_filter(&name, line);
        Ok((name, arguments))
    }

    /// Parses filters between bars. `inline`: the first filter has no bar.
    pub fn filters(&mut self, inline: bool) -> Outcome<Filters> {
        let mut filters = Vec::new();
        if inline {
            filters.push(self.filter()?);
        }
        while self.skip_sign("|") {
            filters.push(self.filter()?);
        }
        Ok(filters)
    }

    fn test(&mut self, value: Expr) -> Outcome<Expr> {
        self.next();
        let negated = self.skip_word("not");
        let line = self.line();
        let name = self.dotted_name()?;
        let arguments = match self.peek() {
            Token::Sign("(") => self.arguments()?,
            Token::Name(word) if matches!(&**word, "else" | "or" | "and") => Arguments::default(),
            Token::Name(word) if **word == *"is" => return Err(self.fault("tests cannot be chained with `is`")),
            Token::Name(_) | Token::String(_) | Token::Int(_) | Token::Float(_) | Token::Sign("[" | "{") => {
                let argument = self.nested(Self::primary)?;
                let argument = self.postfix(argument)?;
                Arguments { positional: vec![argument], ..Arguments::default() }
            }
            _ => Arguments::default(),
        };
        self.note_test(&name, line);
        let test = Expr::Test(Box::new(value), name, arguments);
        Ok(if negated { Expr::Not(Box::new(test)) } else { test })
    }

    pub fn arguments(&mut self) -> Outcome<Arguments> {
        self.expect_sign("(")?;
        let mut found = Arguments::default();
        let mut is_first = true;
        while !self.is_sign(")") {
            if !is_first {
                self.expect_sign(",")?;
                if self.is_sign(")") {
                    break;
                }
            }
            is_first = false;
            let is_named = matches!(self.peek(), Token::Name(_)) && matches!(self.look(), Token::Sign("="));
            let is_late = found.more_named.is_some()
                || (!is_named && !self.is_sign("**") && (found.more.is_some() || (!self.is_sign("*") && !found.named.is_empty())));
            if is_late {
                return Err(self.fault("an argument follows arguments that must come last"));
            }
            if self.skip_sign("*") {
                found.more = Some(Box::new(self.expression()?));
            } else if self.skip_sign("**") {
                found.more_named = Some(Box::new(self.expression()?));
            } else if is_named {
                let name = self.name()?;
                self.next();
                found.named.push((name, self.expression()?));
            } else {
                found.positional.push(self.expression()?);
            }
        }
        self.next();
        Ok(found)
    }
}
