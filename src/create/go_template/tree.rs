//! The tree of a template of Go's.

/// A part of a template.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    Text(String),
    /// Prints a pipeline, or sets variables.
    Print(Pipeline),
    If {
        test: Pipeline,
        then: Vec<Node>,
        otherwise: Vec<Node>,
    },
    With {
        value: Pipeline,
        then: Vec<Node>,
        otherwise: Vec<Node>,
    },
    /// The variables of the pipeline are the index and the item, or only the item.
    Range {
        over: Pipeline,
        body: Vec<Node>,
        otherwise: Vec<Node>,
    },
    Break(usize),
    Continue(usize),
}

/// Commands, each of which gets the value of the one before as its last argument.
#[derive(Clone, Debug, PartialEq)]
pub struct Pipeline {
    pub line: usize,
    /// The variables that the pipeline sets, without `$`.
    pub sets: Vec<String>,
    /// Whether the variables are new (`:=`).
    pub declares: bool,
    pub commands: Vec<Vec<Operand>>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    Dot,
    /// Fields of the dot: `.A.B`.
    Field(Vec<String>),
    /// A variable without `$` and its fields. The empty name is `$`, the root.
    Variable(String, Vec<String>),
    Function(String),
    Text(String),
    /// A decimal integer.
    Number(String),
    Bool(bool),
    Nil,
    /// A pipeline in parentheses and fields of its value.
    Nested(Box<Pipeline>, Vec<String>),
}

/// Calls `see` with every pipeline, in the order of the text.
pub fn pipelines<'a>(nodes: &'a [Node], see: &mut dyn FnMut(&'a Pipeline)) {
    for node in nodes {
        match node {
            Node::Text(_) | Node::Break(_) | Node::Continue(_) => {}
            Node::Print(pipeline) => nested(pipeline, see),
            Node::If { test: head, then, otherwise }
            | Node::With { value: head, then, otherwise }
            | Node::Range { over: head, body: then, otherwise } => {
                nested(head, see);
                pipelines(then, see);
                pipelines(otherwise, see);
            }
        }
    }
}

fn nested<'a>(pipeline: &'a Pipeline, see: &mut dyn FnMut(&'a Pipeline)) {
    see(pipeline);
    for operand in pipeline.commands.iter().flatten() {
        if let Operand::Nested(inner, _) = operand {
            nested(inner, see);
        }
    }
}

impl Pipeline {
    /// Whether the pipeline itself reads a field of the dot or of the root.
    pub fn reads(&self, name: &str) -> bool {
        self.commands.iter().flatten().any(|operand| match operand {
            Operand::Field(fields) => fields.first().is_some_and(|first| first == name),
            Operand::Variable(variable, fields) => variable.is_empty() && fields.first().is_some_and(|first| first == name),
            _ => false,
        })
    }
}

/// Whether any pipeline reads a field of the dot or of the root.
pub fn read(nodes: &[Node], name: &str) -> bool {
    let mut found = false;
    pipelines(nodes, &mut |pipeline| found |= pipeline.reads(name));
    found
}
