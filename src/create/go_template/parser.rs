//! Parses the actions of a template into a tree.

use super::error::GoTemplateError;
use super::lexer::{Piece, Token};
use super::tree::{Node, Operand, Pipeline};

/// The deepest nesting of actions, and of parentheses.
const MAX_DEPTH: usize = 60;

/// Actions of Go's templates that are refused by name.
const REFUSED: [&str; 3] = ["define", "template", "block"];

type Outcome<T> = Result<T, GoTemplateError>;

pub fn parse(pieces: Vec<Piece>) -> Outcome<Vec<Node>> {
    let mut parser = Parser { pieces: pieces.into_iter(), depth: 0, loops: 0, line: 1 };
    let (nodes, end) = parser.nodes()?;
    match end {
        None => Ok(nodes),
        Some(end) => Err(GoTemplateError::new(parser.line, format!("`{}` does not belong to an action before it", end.name()))),
    }
}

/// The keyword that ends a list of nodes.
enum End {
    End,
    /// With what follows `else`.
    Else(Vec<Token>),
}

impl End {
    fn name(&self) -> &'static str {
        match self {
            Self::End => "end",
            Self::Else(_) => "else",
        }
    }
}

struct Parser {
    pieces: std::vec::IntoIter<Piece>,
    depth: usize,
    /// The number of loops around the current action.
    loops: usize,
    /// The line of the current action.
    line: usize,
}

impl Parser {
    fn fault<T>(&self, what: impl Into<String>) -> Outcome<T> {
        Err(GoTemplateError::new(self.line, what))
    }

    /// Parses up to `end` or `else`, or to the end of the source.
    fn nodes(&mut self) -> Outcome<(Vec<Node>, Option<End>)> {
        let mut nodes = Vec::new();
        while let Some(piece) = self.pieces.next() {
            let (tokens, line) = match piece {
                Piece::Text(text) => {
                    nodes.push(Node::Text(text));
                    continue;
                }
                Piece::Action(tokens, line) => (tokens, line),
            };
            self.line = line;
            let word = match tokens.first() {
                Some(Token::Word(word)) => word.clone(),
                Some(_) => String::new(),
                None => return self.fault("the action is empty"),
            };
            match word.as_str() {
                "end" if tokens.len() == 1 => return Ok((nodes, Some(End::End))),
                "else" => return Ok((nodes, Some(End::Else(tokens[1..].to_vec())))),
                "if" | "with" | "range" => nodes.push(self.block(&word, &tokens[1..])?),
                "break" | "continue" if tokens.len() == 1 => {
                    if self.loops == 0 {
                        return self.fault(format!("`{word}` stands outside of any `range`"));
                    }
                    nodes.push(if word == "break" { Node::Break(line) } else { Node::Continue(line) });
                }
                word if REFUSED.contains(&word) => {
                    return self.fault(format!("`{word}` is not supported: write the template without templates inside it"));
                }
                _ => nodes.push(Node::Print(self.pipeline(&tokens)?)),
            }
        }
        Ok((nodes, None))
    }

    fn block(&mut self, word: &str, head: &[Token]) -> Outcome<Node> {
        let line = self.line;
        if self.depth == MAX_DEPTH {
            return self.fault(format!("actions are nested more than {MAX_DEPTH} deep"));
        }
        self.depth += 1;
        let is_loop = word == "range";
        let head = self.pipeline(head)?;
        if !is_loop && head.sets.len() > 1 {
            return self.fault(format!("`{word}` sets one variable, not {}", head.sets.len()));
        }
        self.loops += usize::from(is_loop);
        let (then, end) = self.nodes()?;
        self.loops -= usize::from(is_loop);
        let otherwise = match end {
            Some(End::End) => Vec::new(),
            Some(End::Else(rest)) => self.otherwise(word, &rest, line)?,
            None => return Err(GoTemplateError::new(line, format!("`{word}` has no `end`"))),
        };
        self.depth -= 1;
        Ok(match word {
            "if" => Node::If { test: head, then, otherwise },
            "with" => Node::With { value: head, then, otherwise },
            _ => Node::Range { over: head, body: then, otherwise },
        })
    }

    /// Parses what follows `else`: nodes, or another `if` or `with` that shares its `end`.
    fn otherwise(&mut self, word: &str, rest: &[Token], line: usize) -> Outcome<Vec<Node>> {
        match rest {
            [] => match self.nodes()? {
                (nodes, Some(End::End)) => Ok(nodes),
                (_, Some(End::Else(_))) => self.fault(format!("the `{word}` of line {line} has a second `else`")),
                (_, None) => Err(GoTemplateError::new(line, format!("`{word}` has no `end`"))),
            },
            [Token::Word(next), head @ ..] if next == word && word != "range" => Ok(vec![self.block(word, head)?]),
            _ => self.fault("after `else`, only another `if` or the end of the action is expected"),
        }
    }

    fn pipeline(&mut self, tokens: &[Token]) -> Outcome<Pipeline> {
        let mut rest = tokens;
        let (mut sets, mut declares) = (Vec::new(), false);
        let sign = tokens.iter().position(|token| matches!(token, Token::Set | Token::Declare));
        if let Some(at) = sign {
            declares = tokens[at] == Token::Declare;
            for (place, token) in tokens[..at].iter().enumerate() {
                match token {
                    Token::Variable(name, fields) if place % 2 == 0 && !name.is_empty() && fields.is_empty() => sets.push(name.clone()),
                    Token::Comma if place % 2 == 1 => {}
                    _ => return self.fault("only variables such as `$x` can be set"),
                }
            }
            if sets.is_empty() || sets.len() > 2 || at % 2 == 0 {
                return self.fault("one or two variables are expected before the sign");
            }
            rest = &tokens[at + 1..];
        }
        let mut operands = Operands { rest, line: self.line, depth: self.depth };
        let commands = operands.commands()?;
        match operands.rest {
            [] => Ok(Pipeline { line: self.line, sets, declares, commands }),
            _ => self.fault("a parenthesis is closed that was not opened"),
        }
    }
}

/// The tokens of a pipeline.
struct Operands<'a> {
    rest: &'a [Token],
    line: usize,
    depth: usize,
}

impl Operands<'_> {
    fn fault<T>(&self, what: impl Into<String>) -> Outcome<T> {
        Err(GoTemplateError::new(self.line, what))
    }

    /// Parses up to a closing parenthesis or the end.
    fn commands(&mut self) -> Outcome<Vec<Vec<Operand>>> {
        let (mut commands, mut command) = (Vec::new(), Vec::new());
        while let [token, rest @ ..] = self.rest {
            match token {
                Token::Close => break,
                Token::Pipe => {
                    self.rest = rest;
                    commands.push(self.complete(std::mem::take(&mut command))?);
                }
                _ => command.push(self.operand()?),
            }
        }
        commands.push(self.complete(command)?);
        Ok(commands)
    }

    fn complete(&self, command: Vec<Operand>) -> Outcome<Vec<Operand>> {
        if command.is_empty() { self.fault("a value is missing") } else { Ok(command) }
    }

    fn operand(&mut self) -> Outcome<Operand> {
        let [token, rest @ ..] = self.rest else { return self.fault("a value is missing") };
        self.rest = rest;
        Ok(match token {
            Token::Dot => Operand::Dot,
            Token::Field { names, joined: false } => Operand::Field(names.clone()),
            Token::Variable(name, fields) => Operand::Variable(name.clone(), fields.clone()),
            Token::Text(text) => Operand::Text(text.clone()),
            Token::Number(number) => Operand::Number(number.clone()),
            Token::Word(word) => match word.as_str() {
                "true" | "false" => Operand::Bool(word == "true"),
                "nil" => Operand::Nil,
                _ => Operand::Function(word.clone()),
            },
            Token::Open => self.nested()?,
            Token::Field { names, .. } => return self.fault(format!("`.{}` must stand behind a value in parentheses", names.join("."))),
            Token::Set | Token::Declare => return self.fault("variables are set at the beginning of an action only"),
            Token::Comma => return self.fault("a comma is not expected here"),
            Token::Pipe | Token::Close => return self.fault("a value is missing"),
        })
    }

    fn nested(&mut self) -> Outcome<Operand> {
        if self.depth == MAX_DEPTH {
            return self.fault(format!("parentheses are nested more than {MAX_DEPTH} deep"));
        }
        self.depth += 1;
        let commands = self.commands()?;
        self.depth -= 1;
        let [Token::Close, rest @ ..] = self.rest else { return self.fault("a parenthesis is not closed") };
        self.rest = rest;
        let mut fields = Vec::new();
        if let [Token::Field { names, joined: true }, rest @ ..] = self.rest {
            fields.clone_from(names);
            self.rest = rest;
        }
        let pipeline = Pipeline { line: self.line, sets: Vec::new(), declares: false, commands };
        Ok(Operand::Nested(Box::new(pipeline), fields))
    }
}
