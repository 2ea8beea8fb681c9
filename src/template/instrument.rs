//! Rewrites a template so that every operation that makes or walks large values draws on the budget. For example, `a ~ b` becomes
//! `pen__concat(a , b)`, and a call is followed by `|pen__charge`. [`crate::builtins`] defines these functions and filters.
//!
//! minijinja's own parser gives the positions of the edits. They leave line numbers and white space as they are.

use std::mem::discriminant;

use minijinja::Error;
use minijinja::machinery::ast::{BinOp, BinOpKind, CallArg, CompareOpKind, Expr, ForLoop, Spanned, Stmt};
use minijinja::machinery::parse;
use minijinja::syntax::SyntaxConfig;

/// Prefix of the names of these functions and filters. A template must not contain it.
pub(super) const PREFIX: &str = "pen__";

/// The rewritten source.
pub(super) fn instrument(source: &str, syntax: SyntaxConfig) -> Result<String, Error> {
    let tree = parse(source, "chat_template", syntax)?;
    let mut editor = Editor { source, edits: Vec::new() };
    editor.statement(&tree, false);
    Ok(editor.apply())
}

/// Replaces `drop` bytes at position `at`. With `drop` 0 it is an insertion.
struct Edit {
    at: usize,
    drop: usize,
    text: String,
}

struct Editor<'a> {
    source: &'a str,
    edits: Vec<Edit>,
}

impl Editor<'_> {
    fn insert(&mut self, at: usize, text: impl Into<String>) {
        self.edits.push(Edit { at, drop: 0, text: text.into() });
    }

    /// Applies the edits. Those at the same position keep their order, which is right: openings were recorded from the outside in, closings
    /// from the inside out.
    fn apply(mut self) -> String {
        self.edits.sort_by_key(|edit| edit.at);
        let (mut out, mut at) = (String::with_capacity(self.source.len() * 2), 0);
        for edit in &self.edits {
            out.push_str(&self.source[at..edit.at]);
            out.push_str(&edit.text);
            at = edit.at + edit.drop;
        }
        out.push_str(&self.source[at..]);
        out
    }

    fn statements(&mut self, all: &[Stmt], captured: bool) {
        all.iter().for_each(|statement| self.statement(statement, captured));
    }

    /// `captured`: the text that the statement prints becomes a value, so the limit on the output does not apply to it.
    fn statement(&mut self, statement: &Stmt, captured: bool) {
        match statement {
            Stmt::Template(node) => self.statements(&node.children, captured),
            Stmt::EmitExpr(node) => self.value(&node.expr),
            Stmt::ForLoop(node) => self.for_loop(node, captured),
            Stmt::IfCond(node) => {
                self.value(&node.expr);
                self.statements(&node.true_body, captured);
                self.statements(&node.false_body, captured);
            }
            Stmt::WithBlock(node) => {
                node.assignments.iter().for_each(|(_, value)| self.value(value));
                self.statements(&node.body, captured);
            }
            Stmt::Set(node) => self.value(&node.expr),
            Stmt::SetBlock(node) => {
                self.insert(node.target.span().end_offset as usize, format!("|{PREFIX}charge"));
                node.filter.iter().for_each(|filter| self.value(filter));
                self.statements(&node.body, true);
            }
            Stmt::AutoEscape(node) => self.statements(&node.body, captured),
            Stmt::FilterBlock(node) => {
                self.value(&node.filter);
                self.statements(&node.body, true);
            }
            Stmt::Block(node) => self.statements(&node.body, captured),
            Stmt::Macro(node) => {
                node.defaults.iter().for_each(|value| self.value(value));
                self.statements(&node.body, true);
            }
            Stmt::CallBlock(node) => {
                self.arguments(&node.call.args);
                node.macro_decl.defaults.iter().for_each(|value| self.value(value));
                self.statements(&node.macro_decl.body, true);
            }
            Stmt::Do(node) => self.arguments(&node.call.args),
            Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => {}
            // The environment has no other templates to load, so these fail.
            Stmt::Import(_) | Stmt::FromImport(_) | Stmt::Extends(_) | Stmt::Include(_) => {}
        }
    }

    fn for_loop(&mut self, node: &ForLoop, captured: bool) {
        self.value(&node.iter);
        let raw = if captured { raw_bytes(&node.body) } else { 0 };
        self.append_filter(&node.iter, &format!("|{PREFIX}loop({raw})"));
        node.filter_expr.iter().for_each(|condition| self.value(condition));
        self.statements(&node.body, captured);
        self.statements(&node.else_body, captured);
    }

    /// Appends a filter to each subexpression that may be the value of `expr`.
    fn append_filter(&mut self, expr: &Expr, filter: &str) {
        match expr {
            Expr::BinOp(node) if matches!(node.op, BinOpKind::ScAnd | BinOpKind::ScOr) => {
                self.append_filter(&node.left, filter);
                self.append_filter(&node.right, filter);
            }
            Expr::IfExpr(node) => {
                self.append_filter(&node.true_expr, filter);
                node.false_expr.iter().for_each(|expr| self.append_filter(expr, filter));
            }
            Expr::Const(_) => {}
            expr => self.insert(expr.span().end_offset as usize, filter),
        }
    }

    /// Checks the size of the expression's value, because the following operation walks it.
    fn check_size(&mut self, expr: &Expr) {
        self.append_filter(expr, &format!("|{PREFIX}check"));
    }

    /// Instruments an expression after which a filter may stand.
    fn value(&mut self, expr: &Expr) {
        self.expr(expr, false);
    }

    /// Instruments an expression. `continues`: an attribute, a subscript or a call follows, so no filter may be appended.
    fn expr(&mut self, expr: &Expr, continues: bool) {
        let end = expr.span().end_offset as usize;
        match expr {
            Expr::Var(_) | Expr::Const(_) => {}
            Expr::Slice(node) => {
                self.slice_operand(&node.expr);
                [&node.start, &node.stop, &node.step].into_iter().flatten().for_each(|bound| self.value(bound));
                if !continues {
                    self.insert(end, format!("|{PREFIX}charge"));
                }
            }
            Expr::UnaryOp(node) => self.value(&node.expr),
            Expr::BinOp(node) => self.operation(node),
            Expr::Compare(node) => {
                self.value(&node.expr);
                self.check_size(&node.expr);
                for (i, op) in node.ops.iter().enumerate() {
                    self.value(&op.expr);
                    // A search takes as long as the text or list that it searches, a comparison as long as its shorter side.
                    if i + 1 < node.ops.len() || matches!(op.op, CompareOpKind::In | CompareOpKind::NotIn) {
                        self.check_size(&op.expr);
                    }
                }
            }
            Expr::IfExpr(node) => {
                self.value(&node.test_expr);
                self.value(&node.true_expr);
                node.false_expr.iter().for_each(|expr| self.value(expr));
            }
            Expr::Filter(node) => {
                node.expr.iter().for_each(|expr| self.value(expr));
                self.arguments(&node.args);
            }
            Expr::Test(node) => {
                self.value(&node.expr);
                // The argument may have no parentheses. A filter after it would then apply to the result of the test.
                node.args.iter().for_each(|arg| self.expr(argument(arg), true));
            }
            Expr::GetAttr(node) => self.expr(&node.expr, true),
            Expr::GetItem(node) => {
                self.expr(&node.expr, true);
                self.value(&node.subscript_expr);
                self.check_size(&node.subscript_expr);
            }
            Expr::Call(node) => {
                self.expr(&node.expr, true);
                self.arguments(&node.args);
                if matches!(&node.expr, Expr::GetAttr(callee) if callee.name == "changed") {
                    node.args.iter().for_each(|arg| self.check_size(argument(arg)));
                }
                if !continues {
                    self.insert(end, format!("|{PREFIX}charge"));
                }
            }
            Expr::List(node) => node.items.iter().for_each(|item| self.value(item)),
            Expr::Tuple(node) => node.items.iter().for_each(|item| self.value(item)),
            Expr::Map(node) => {
                for (key, value) in node.keys.iter().zip(&node.values) {
                    self.value(key);
                    self.check_size(key);
                    self.value(value);
                }
            }
        }
    }

    /// The walk over a string is charged before a part of it is taken: `(text|pen__scan)[1:]`.
    fn slice_operand(&mut self, expr: &Expr) {
        let start = chain_start(expr);
        start.into_iter().for_each(|start| self.insert(start, "("));
        self.expr(expr, true);
        if start.is_some() {
            self.insert(expr.span().end_offset as usize, format!("|{PREFIX}scan)"));
        }
    }

    fn arguments(&mut self, args: &[CallArg]) {
        args.iter().for_each(|arg| self.value(argument(arg)));
    }

    fn operation(&mut self, node: &Spanned<BinOp>) {
        let (name, sign) = match node.op {
            BinOpKind::Add => ("add", '+'),
            BinOpKind::Mul => ("mul", '*'),
            BinOpKind::Concat => ("concat", '~'),
            BinOpKind::ScAnd | BinOpKind::ScOr => {
                self.value(&node.left);
                return self.value(&node.right);
            }
            op => {
                self.value(&node.left);
                self.check_size(&node.left);
                self.value(&node.right);
                if matches!(op, BinOpKind::In) {
                    self.check_size(&node.right);
                }
                return;
            }
        };
        let span = node.span();
        self.insert(span.start_offset as usize, format!("{PREFIX}{name}("));
        // A chain of the same operator becomes one call, because nested calls would exceed the parser's limit on depth.
        let (mut operands, mut left) = (vec![&node.right], &node.left);
        while let Expr::BinOp(inner) = left {
            if discriminant(&inner.op) != discriminant(&node.op) || inner.span().start_offset != span.start_offset {
                break;
            }
            operands.push(&inner.right);
            left = &inner.left;
        }
        operands.push(left);
        operands.reverse();
        for two in operands.windows(2) {
            self.value(two[0]);
            let gap = two[0].span().end_offset as usize;
            if let Some(offset) = self.source[gap..].find(sign) {
                self.edits.push(Edit { at: gap + offset, drop: 1, text: ",".into() });
            }
        }
        self.value(operands[operands.len() - 1]);
        self.insert(span.end_offset as usize, ")");
    }
}

/// Where a chain of attributes, subscripts, calls and filters of a variable starts. None for other expressions, whose spans may leave out
/// their parentheses; slices of these are limited by the time of the render alone.
fn chain_start(expr: &Expr) -> Option<usize> {
    match expr {
        Expr::Var(node) => Some(node.span().start_offset as usize),
        Expr::GetAttr(node) => chain_start(&node.expr),
        Expr::GetItem(node) => chain_start(&node.expr),
        Expr::Slice(node) => chain_start(&node.expr),
        Expr::Call(node) => chain_start(&node.expr),
        Expr::Filter(node) => chain_start(node.expr.as_ref()?),
        _ => None,
    }
}

fn argument<'a>(arg: &'a CallArg<'a>) -> &'a Expr<'a> {
    match arg {
        CallArg::Pos(expr) | CallArg::Kwarg(_, expr) | CallArg::PosSplat(expr) | CallArg::KwargSplat(expr) => expr,
    }
}

/// Bytes of literal text that one pass through a body may print, without those of inner loops.
fn raw_bytes(body: &[Stmt]) -> usize {
    let of = |statement: &Stmt| match statement {
        Stmt::EmitRaw(node) => node.raw.len(),
        Stmt::IfCond(node) => raw_bytes(&node.true_body).max(raw_bytes(&node.false_body)),
        Stmt::WithBlock(node) => raw_bytes(&node.body),
        Stmt::AutoEscape(node) => raw_bytes(&node.body),
        Stmt::ForLoop(node) => raw_bytes(&node.else_body),
        _ => 0,
    };
    body.iter().map(of).sum()
}
