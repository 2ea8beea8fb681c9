//! The syntax tree of a template. Threads share the tree, so literals hold no [`crate::value::Value`].

use std::sync::Arc;

use num_bigint::BigInt;

pub(crate) type Text = Arc<str>;

#[derive(Debug)]
pub(crate) enum Literal {
    None,
    Bool(bool),
    Int(i64),
    /// An integer outside of `i64`.
    Large(BigInt),
    Float(f64),
    Text(Text),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Mod,
    Pow,
}

impl Operator {
    /// The operator as written.
    pub fn sign(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Sub => "-",
            Self::Mul => "*",
            Self::Div => "/",
            Self::FloorDiv => "//",
            Self::Mod => "%",
            Self::Pow => "**",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}

#[derive(Debug)]
pub(crate) enum Expr {
    Const(Literal),
    Name(Text),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Not(Box<Expr>),
    /// A sign. `true` means minus.
    Sign(bool, Box<Expr>),
    Binary(Operator, Box<Expr>, Box<Expr>),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Concat(Vec<Expr>),
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    If {
        test: Box<Expr>,
        then: Box<Expr>,
        otherwise: Option<Box<Expr>>,
    },
    Attribute(Box<Expr>, Text),
    Item(Box<Expr>, Box<Expr>),
    /// The start, stop and step, each of which may be missing.
    Slice(Box<Expr>, Box<[Option<Expr>; 3]>),
    Filter(Box<Expr>, Text, Arguments),
    Test(Box<Expr>, Text, Arguments),
    Call(Box<Expr>, Arguments),
}

impl Expr {
    /// Whether the expression reads no variable and calls only filters and tests, so that Jinja evaluates it before rendering.
    pub fn is_constant(&self) -> bool {
        match self {
            Self::Const(_) => true,
            Self::Name(_) | Self::Call(..) => false,
            Self::List(items) | Self::Tuple(items) | Self::Concat(items) => items.iter().all(Self::is_constant),
            Self::Dict(pairs) => pairs.iter().all(|(key, value)| key.is_constant() && value.is_constant()),
            Self::Not(value) | Self::Sign(_, value) | Self::Attribute(value, _) => value.is_constant(),
            Self::Binary(_, a, b) | Self::And(a, b) | Self::Or(a, b) | Self::Item(a, b) => a.is_constant() && b.is_constant(),
            Self::Compare(first, rest) => first.is_constant() && rest.iter().all(|(_, value)| value.is_constant()),
            Self::If { test, then, otherwise } => {
                test.is_constant() && then.is_constant() && otherwise.as_deref().is_none_or(Self::is_constant)
            }
            Self::Slice(value, bounds) => value.is_constant() && bounds.iter().flatten().all(Self::is_constant),
            Self::Filter(value, _, arguments) | Self::Test(value, _, arguments) => {
                let Arguments { positional, named, more, more_named } = arguments;
                let rest = [more, more_named].into_iter().flatten().all(|value| value.is_constant());
                value.is_constant() && rest && positional.iter().chain(named.iter().map(|(_, value)| value)).all(Self::is_constant)
            }
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Arguments {
    pub positional: Vec<Expr>,
    pub named: Vec<(Text, Expr)>,
    /// `*items`.
    pub more: Option<Box<Expr>>,
    /// `**dict`.
    pub more_named: Option<Box<Expr>>,
}

/// The target of an assignment or a loop.
#[derive(Debug)]
pub(crate) enum Target {
    Name(Text),
    /// A namespace and its attribute.
    Member(Text, Text),
    Tuple(Vec<Target>),
}

/// The filters of a block, in order.
pub(crate) type Filters = Vec<(Text, Arguments)>;

#[derive(Debug)]
pub(crate) struct Statement {
    /// The line of the statement, counted from 1.
    pub line: u32,
    pub kind: StatementKind,
}

#[derive(Debug)]
pub(crate) enum StatementKind {
    Text(Text),
    Print(Expr),
    /// Each test with its body, and the body of `else`.
    If(Vec<(Expr, Vec<Statement>)>, Vec<Statement>),
    For(Arc<Loop>),
    Set(Target, Expr),
    SetBlock(Target, Filters, Vec<Statement>),
    With(Vec<(Target, Expr)>, Vec<Statement>),
    Macro(Arc<Macro>),
    CallBlock(Expr, Arguments, Arc<Macro>),
    FilterBlock(Filters, Vec<Statement>),
    /// A body whose assignments stay inside: `generation`, or a `scoped` block.
    Scope(Vec<Statement>),
    /// A body that sees only the template's own variables.
    Block(Vec<Statement>),
    AutoEscape(Expr, Vec<Statement>),
    /// `include`, `import`, `from` and `extends`, which fail because there is no other template.
    OtherTemplate(&'static str),
    Break,
    Continue,
}

#[derive(Debug)]
pub(crate) struct Loop {
    pub target: Target,
    pub items: Expr,
    pub test: Option<Expr>,
    pub is_recursive: bool,
    pub body: Vec<Statement>,
    pub otherwise: Vec<Statement>,
}

#[derive(Debug)]
pub(crate) struct Macro {
    /// The macro's name, or `caller` for the body of a call block.
    pub name: Text,
    pub params: Vec<Text>,
    /// The defaults of the last parameters.
    pub defaults: Vec<Expr>,
    pub body: Vec<Statement>,
    /// Whether the body reads `caller`, `varargs` and `kwargs`.
    pub reads_caller: bool,
    pub reads_varargs: bool,
    pub reads_kwargs: bool,
}
