//! Writes the tree of a template as Jinja.

use super::error::GoTemplateError;
use super::fields::{self, Form, Kind, OWN};
use super::pipeline::{Names, Value, literal, print};
use super::tree::{Node, Operand, Pipeline, read};

type Outcome<T> = Result<T, GoTemplateError>;

/// Sets `go.system` to the text of all system messages.
const SYSTEM: &str = "{% for m in messages %}{% if m.role == 'system' %}\
    {% set go.system = go.system ~ '\\n\\n' ~ m.content if go.system else m.content %}{% endif %}{% endfor %}";
/// Clears an exchange that has been rendered.
const CLEAR: &str = "{% set go.system = '' %}{% set go.prompt = '' %}{% set go.response = '' %}";
/// Renders the exchanges before the last one, and leaves the last one in the variables.
const EXCHANGES: &str = "{% for m in messages %}{% set text = m.content or '' %}{% if m.role == 'system' %}\
    {% if go.prompt or go.response %}{{ exchange() }}CLEAR{% endif %}\
    {% set go.system = go.system ~ '\\n\\n' ~ text if go.system else text %}\
    {% elif m.role == 'assistant' %}{% set go.response = go.response ~ '\\n\\n' ~ text if go.response else text %}\
    {% else %}{% if go.response %}{{ exchange() }}CLEAR{% endif %}\
    {% set go.prompt = go.prompt ~ '\\n\\n' ~ text if go.prompt else text %}{% endif %}{% endfor %}";

pub fn translate(nodes: &[Node]) -> Outcome<String> {
    let has_messages = read(nodes, "Messages");
    let mut out = format!("{{% set {OWN} = namespace(system='', prompt='', response='') %}}");
    if has_messages {
        if read(nodes, "System") {
            out.push_str(SYSTEM);
        }
        let mut writer = Writer { out, names: Names::new(Form::Messages) };
        writer.nodes(nodes)?;
        return Ok(writer.out);
    }
    let response = Node::Print(Pipeline {
        line: 1,
        sets: Vec::new(),
        declares: false,
        commands: vec![vec![Operand::Field(vec!["Response".to_owned()])]],
    });
    let mut nodes = nodes.to_vec();
    if !read(&nodes, "Response") {
        nodes.push(response);
    }
    out.push_str("{% macro exchange() %}");
    let mut writer = Writer { out, names: Names::new(Form::Exchanges) };
    writer.nodes(&nodes)?;
    writer.out.push_str("{% endmacro %}");
    writer.out.push_str(&EXCHANGES.replace("CLEAR", CLEAR));
    // The model continues after the response's beginning, so that what follows the response is left out.
    cut(&mut nodes);
    writer.nodes(&nodes)?;
    Ok(writer.out)
}

/// Removes what follows the first use of `.Response`. Returns whether there is one.
fn cut(nodes: &mut Vec<Node>) -> bool {
    for at in 0..nodes.len() {
        let found = match &mut nodes[at] {
            Node::Text(_) | Node::Break(_) | Node::Continue(_) => false,
            Node::Print(pipeline) => pipeline.reads("Response"),
            Node::If { test: head, then, otherwise }
            | Node::With { value: head, then, otherwise }
            | Node::Range { over: head, body: then, otherwise } => {
                let in_head = head.reads("Response") && !read(then, "Response");
                // Both ways lead to the end of the prompt.
                let (one, other) = (cut(then), cut(otherwise));
                in_head || one || other
            }
        };
        if found {
            nodes.truncate(at + 1);
            return true;
        }
    }
    false
}

struct Writer {
    out: String,
    names: Names,
}

impl Writer {
    fn tag(&mut self, text: &str) {
        self.out.extend(["{% ", text, " %}"]);
    }

    fn set(&mut self, name: &str, value: &str) {
        self.out.extend(["{% set ", name, " = ", value, " %}"]);
    }

    fn nodes(&mut self, nodes: &[Node]) -> Outcome<()> {
        nodes.iter().try_for_each(|node| self.node(node))
    }

    fn node(&mut self, node: &Node) -> Outcome<()> {
        match node {
            Node::Text(text) => self.out.extend(["{{ ", &literal(text), " }}"]),
            Node::Print(pipeline) if pipeline.sets.is_empty() => {
                let text = print(&self.names.pipeline(pipeline)?, pipeline.line)?;
                self.out.extend(["{{ ", &text, " }}"]);
            }
            Node::Print(pipeline) => self.variable(pipeline).map(drop)?,
            Node::If { test, then, otherwise } => {
                self.names.enter(None);
                let value = self.head(test)?;
                self.branches(&value.text, then, otherwise, None)?;
                self.names.leave();
            }
            Node::With { value, then, otherwise } => {
                self.names.enter(None);
                let head = self.head(value)?;
                let name = self.names.fresh();
                self.set(&name, &head.text);
                let dot = Value::new(&*name, head.kind);
                self.branches(&name, then, otherwise, Some(dot))?;
                self.names.leave();
            }
            Node::Range { over, body, otherwise } => self.range(over, body, otherwise)?,
            Node::Break(_) => self.tag("break"),
            Node::Continue(_) => self.tag("continue"),
        }
        Ok(())
    }

    /// The value of the head of a block, whose variable holds it if it has one.
    fn head(&mut self, pipeline: &Pipeline) -> Outcome<Value> {
        match pipeline.sets.is_empty() {
            true => {
                let value = self.names.pipeline(pipeline)?;
                match value.kind {
                    // There are always some values.
                    Kind::Root => Ok(Value::new("true", Kind::Flag)),
                    _ => Ok(value),
                }
            }
            false => self.variable(pipeline),
        }
    }

    fn variable(&mut self, pipeline: &Pipeline) -> Outcome<Value> {
        let value = self.names.pipeline(pipeline)?;
        let ([name], false) = (pipeline.sets.as_slice(), value.kind == Kind::Root) else {
            return Err(GoTemplateError::new(pipeline.line, "one variable is set to one value, outside of `range`"));
        };
        let text = match pipeline.declares {
            true => self.names.declare(name, value.kind),
            false => self.names.assigned(name, value.kind, pipeline.line)?,
        };
        self.set(&text, &value.text);
        Ok(Value::new(text, value.kind))
    }

    fn branches(&mut self, test: &str, then: &[Node], otherwise: &[Node], dot: Option<Value>) -> Outcome<()> {
        self.tag(&format!("if {test}"));
        self.names.enter(dot);
        self.nodes(then)?;
        self.names.leave();
        self.otherwise(otherwise)?;
        self.tag("endif");
        Ok(())
    }

    fn otherwise(&mut self, nodes: &[Node]) -> Outcome<()> {
        if !nodes.is_empty() {
            self.tag("else");
            self.names.enter(None);
            self.nodes(nodes)?;
            self.names.leave();
        }
        Ok(())
    }

    fn range(&mut self, over: &Pipeline, body: &[Node], otherwise: &[Node]) -> Outcome<()> {
        let list = self.names.pipeline(over)?;
        let Some(kind) = fields::item(list.kind) else {
            return Err(GoTemplateError::new(over.line, "`range` needs a list of messages, calls, tools, properties or texts"));
        };
        let [key, item] = [self.names.fresh(), self.names.fresh()];
        let (by_name, [key_name, item_name]) = (list.kind == Kind::Properties, [&key, &item].map(|name| name.replace('.', "_")));
        match by_name {
            true => self.tag(&format!("for {key_name}, {item_name} in {}.items()", list.text)),
            false => self.tag(&format!("for {item_name} in {}", list.text)),
        }
        self.names.enter(Some(Value::new(&*item_name, kind)));
        // Blocks inside may set these variables, and have loops of their own.
        let key_value = if by_name { (key_name, Kind::Text) } else { ("loop.index0".to_owned(), Kind::Number) };
        let values = [key_value, (item_name, kind)];
        let first = 2 - over.sets.len();
        for (name, (value, kind)) in over.sets.iter().zip(&values[first..]) {
            let text = match over.declares {
                true => self.names.declare(name, *kind),
                false => self.names.assigned(name, *kind, over.line)?,
            };
            self.set(&text, value);
        }
        self.nodes(body)?;
        self.names.leave();
        self.otherwise(otherwise)?;
        self.tag("endfor");
        Ok(())
    }
}
