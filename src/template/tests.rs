use super::*;
use crate::input::RESERVED;
use serde_json::{Map, Value};

const DATE: &str = "2024-07-26";

fn template(source: &str) -> Result<ChatTemplate, TemplateError> {
    ChatTemplate::with_clock(source, "<s>", "</s>", Clock::from_date(DATE).unwrap())
}

fn read(path: &std::path::Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn case_input(case: &Value) -> RenderInput {
    RenderInput {
        messages: case["messages"].clone(),
        tools: case.get("tools").cloned(),
        add_generation_prompt: case.get("add_generation_prompt").is_none_or(|v| v.as_bool().unwrap()),
        kwargs: Map::new(),
    }
}

/// The number of a template's cases, and a description of each case that fails.
fn failures(dir: &std::path::Path, name: &str) -> (usize, Vec<String>) {
    let cases = read(&dir.join("cases.json"));
    let expected = read(&dir.join(format!("{name}.json")));
    let source = std::fs::read_to_string(dir.join(format!("{name}.jinja"))).unwrap();
    let template = match template(&source) {
        Ok(template) => template,
        Err(e) => return (expected.as_object().unwrap().len(), vec![format!("{name}: {e}")]),
    };
    let mut bad = Vec::new();
    for (case_name, want) in expected.as_object().unwrap() {
        let case = cases.as_array().unwrap().iter().find(|c| c["name"] == *case_name).unwrap();
        let got = template.render(&case_input(case));
        let same = match (&got, want.get("text"), want.get("raises")) {
            (Ok(text), Some(want), _) => text == want.as_str().unwrap(),
            (Err(TemplateError::Raised(text)), _, Some(want)) => text == want.as_str().unwrap(),
            _ => false,
        };
        if !same {
            bad.push(format!("{name} {case_name}:\n  got  {got:?}\n  want {want}"));
        }
    }
    (expected.as_object().unwrap().len(), bad)
}

#[test]
fn real_templates_render_like_transformers() {
    let dir = fixtures::golden("templates");
    let mut names: Vec<String> = std::fs::read_dir(&dir)
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str().and_then(|n| n.strip_suffix(".jinja")).map(String::from))
        .collect();
    names.sort();
    let (mut total, mut bad) = (0, Vec::new());
    for name in &names {
        let (cases, failed) = failures(&dir, name);
        total += cases;
        bad.extend(failed);
    }
    eprintln!("{} of {total} cases of {} templates", total - bad.len(), names.len());
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

/// A source ten times as large as that of any template in use passes.
#[test]
fn the_bounds_leave_real_templates_a_factor_of_ten() {
    let dir = fixtures::golden("templates");
    let cases = read(&dir.join("cases.json"));
    let (mut tag, mut length, mut depth, mut output, mut count) = (0, 0, 0, 0, 0);
    for entry in std::fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "jinja") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        count += 1;
        tag = tag.max(syntax::longest_tag(&text));
        length = length.max(text.len());
        let (mut open, ends) = (0_usize, ["endif", "endfor", "endmacro"]);
        for tag in text.split("{%").skip(1) {
            let word = tag.trim_start_matches(['-', '+', ' ', '\n']).split(|c: char| !c.is_ascii_lowercase()).next().unwrap();
            open = if ends.contains(&word) { open - 1 } else { open + usize::from(["if", "for", "macro"].contains(&word)) };
            depth = depth.max(open);
        }
        let template = template(&text).unwrap();
        let texts = cases.as_array().unwrap().iter().filter_map(|case| template.render(&case_input(case)).ok());
        output = output.max(texts.map(|text| text.len()).max().unwrap_or(0));
    }
    eprintln!("{count} templates: tag {tag}, source {length}, nesting {depth}, output {output}");
    assert!(count >= 51 && tag * 10 <= syntax::MAX_TAG && length * 10 <= source::MAX_SOURCE && output * 10 <= budget::MAX_OUTPUT);
    // The parser's own limit is on nesting, so that is tried too.
    render(&format!("{}{}", "{% if 1 %}".repeat(depth * 10), "{% endif %}".repeat(depth * 10))).unwrap();
}

/// Devstral's template sets its default system message in one tag.
#[test]
fn a_tag_may_hold_a_long_text() {
    let source = format!("{{%- set default = '{}' %}}{{{{ default }}}}", "You are Dev\\'stral. ".repeat(3000));
    assert_eq!(render(&source).unwrap().len(), 3000 * "You are Dev'stral. ".len());
}

fn render(source: &str) -> Result<String, TemplateError> {
    template(source)?.render(&RenderInput { messages: serde_json::json!([{"role": "user", "content": "hi"}]), ..RenderInput::default() })
}

fn refusal(source: &str) -> String {
    match render(source) {
        Err(TemplateError::Invalid(text)) => text,
        Err(TemplateError::Raised(text)) => panic!("raised: {text}"),
        Ok(text) => panic!("rendered {} bytes", text.len()),
    }
}

#[test]
fn malformed_and_overlong_sources_are_refused() {
    assert!(refusal("a\n{% if %}").contains("line 2"));
    assert!(refusal("{{ x.y.z }}").contains("line 1"));
    let big = |start: &str, part: &str, end: &str| format!("{start}{}{end}", part.repeat(50_000));
    for source in [
        big("{{ 1", "+1", " }}"),
        big("{{ 1", "|f", " }}"),
        big("{{ a", ".a", " }}"),
        big("{{ ", "(", " }}"),
        big("{% if a %}", "{%elif a%}", "{% endif %}"),
    ] {
        assert!(refusal(&source).contains("expected at most"), "{source:.20}");
    }
}

/// Deeply nested sources of the greatest permitted length may fail to render, but must not crash the process.
#[test]
fn sources_up_to_the_length_limit_do_not_overflow_the_stack() {
    let fill = |start: &str, part: &str, end: &str| {
        format!("{start}{}{end}", part.repeat((source::MAX_SOURCE - start.len() - end.len()) / part.len()))
    };
    let sources = [
        fill("{{ 1", "+1", " }}"),
        fill("{{ 1", "+a", " }}"),
        fill("{{ 1", "~a", " }}"),
        fill("{{ a", "|e", " }}"),
        fill("{{ a", ".a", " }}"),
        fill("{{ a", "()", " }}"),
        fill("{{ a", "[a]", " }}"),
        fill("{% if a %}", "{%elif a%}", "{% endif %}"),
        fill("{{ ", "not ", "a }}"),
        fill("{{ ", "-", "1 }}"),
        fill("{{ ", "(", " }}"),
        fill("{{ ", "[", " }}"),
        fill("{{ 1", " if a else 1", " }}"),
        fill("{{ 1", " and 1", " }}"),
        fill("{{ 1", "<1", " }}"),
        fill("", "{%if 1%}", ""),
        fill("", "{%for a in b%}", ""),
    ];
    let quoted = format!("{{{{ '}}}}' {} }}}}", "+a".repeat(5000));
    assert!(refusal(&quoted).contains("a tag has 10009 bytes"), "{}", refusal(&quoted));
    for source in sources {
        let start = std::time::Instant::now();
        let result = render(&source);
        eprintln!("{:.24}…: {:?}, {}", source, start.elapsed(), result.err().map_or("rendered".into(), |e| e.to_string()));
        assert!(start.elapsed() < std::time::Duration::from_secs(10), "{:.24}", source);
    }
}

#[test]
fn endless_recursion_and_loops_are_stopped() {
    refusal("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
    refusal("{% for i in range(10**9) %}{% endfor %}");
    let loops = "{% for a in range(999) %}{% for b in range(999) %}{% for c in range(999) %}{% endfor %}{% endfor %}{% endfor %}";
    let start = std::time::Instant::now();
    assert!(refusal(loops).contains("steps"));
    eprintln!("out of fuel after {:?}", start.elapsed());
    let nested = "{% set ns = namespace(x=[]) %}{% for a in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}";
    for end in ["", "{{ ns.x }}", "{{ ns.x | tojson }}", "{{ ns.x == [ns.x] }}"] {
        let _ = render(&format!("{nested}{end}"));
    }
}

/// `tests/wire/test_templates.py` checks the memory that such templates take.
#[test]
fn hostile_templates_are_stopped_within_seconds() {
    let doubled =
        |grow: &str| format!("{{% set ns = namespace(x='ab', l=['ab']) %}}{{% for i in range(60) %}}{grow}{{% endfor %}}{{{{ ns.x }}}}");
    let shared = "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}";
    let raw = "x".repeat(50_000);
    let mut sources = vec![
        "{% for i in range(10) %}{% set x = 'a' * 99000000 %}{% endfor %}".to_owned(),
        "{% set ns = namespace(l=[]) %}{% for i in range(1000) %}{% set ns.l = ns.l + ['a' * 1000000] %}{% endfor %}".to_owned(),
        doubled("{% set ns.x = ns.x ~ ns.x %}"),
        doubled("{% set ns.x = ns.x + ns.x %}"),
        doubled("{% set ns.x = ns.x * 2 %}"),
        doubled("{% set ns.x = [ns.x, ns.x] | join('') %}"),
        doubled("{% set ns.x = (ns.x, ns.x) | join('') %}"),
        doubled("{% set ns.x = ns.x.replace('a', ns.x) %}"),
        doubled("{% set ns.x = ns.x | replace('b', ns.x) %}"),
        doubled("{% set ns.x = ns.x.join([ns.x, ns.x]) %}"),
        doubled("{% set ns.x = '{}{}'.format(ns.x, ns.x) %}"),
        doubled("{% set ns.x = '%s%s' | format(ns.x, ns.x) %}"),
        doubled("{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"),
        doubled("{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}{% set ns.x = m(ns.x) %}"),
        doubled("{% set ns.l = ns.l + ns.l %}") + "{{ ns.l | length }}",
        doubled("{% set ns.l = ns.l * 2 %}"),
        doubled("{% set ns.x = ns.x | indent(ns.x | length, true) %}"),
        "{{ '{:>999999999}'.format('x') }}".to_owned(),
        "{{ '%999999999d' | format(1) }}".to_owned(),
        "{{ 'a' | batch(999999999, 'x') | list }}".to_owned(),
        "{{ ('a' * 20000000) | list | length }}".to_owned(),
        "{% for c in 'a' * 20000000 %}{% endfor %}".to_owned(),
        format!("{{% set x %}}{{% for i in range(100000) %}}{raw}{{% endfor %}}{{% endset %}}"),
        format!(
            "{{% set ns = namespace(l=[]) %}}{{% for i in range(90000) %}}{{% set x %}}{raw}{{% endset %}}\
             {{% set ns.l = ns.l + [x] %}}{{% endfor %}}"
        ),
    ];
    for end in [
        "{{ ns.l }}",
        "{{ ns.l ~ '' }}",
        "{{ ns.l == [ns.l] }}",
        "{{ ns.l | string | length }}",
        "{{ ns.l | tojson | length }}",
        "{{ ns.l in [ns.l] }}",
        "{{ {ns.l: 1} }}",
    ] {
        sources.push(format!("{shared}{end}"));
    }
    for source in sources {
        let start = std::time::Instant::now();
        let error = refusal(&source);
        eprintln!("{:.90}…: {:?}, {error}", source, start.elapsed());
        assert!(start.elapsed() < std::time::Duration::from_secs(10), "{source:.90}: {:?}", start.elapsed());
    }
}

/// Only namespaces can hold each other. Python writes such a circle with dots.
#[test]
fn namespaces_in_a_circle_end_a_walk() {
    let cyclic = "{% set ns = namespace() %}{% set ns.x = [ns] %}{% set ms = namespace() %}{% set ms.x = [ms] %}";
    for (end, want) in [
        ("{{ ns }}", "<Namespace {'x': [<Namespace {...}>]}>"),
        ("{{ ns.x == ms.x }}{{ ns.x == ns.x }}{{ ns.x is eq ms.x }}", "FalseTrueFalse"),
        ("{{ ns.x | string }}", "[<Namespace {'x': [...]}>]"),
        ("{{ {}[ns.x] }}{{ {ns: 1}[ns] }}{{ {ns: 1}[ms] }}", "1"),
        (
            "{% set ns.y = ms %}{% set ms.y = ns %}{% macro m() %}{{ ns.y.y.x[0] == ns }}{% endmacro %}{% set ns.m = m %}{{ ns.m() }}",
            "True",
        ),
    ] {
        assert_eq!(render(&format!("{cyclic}{end}")).unwrap(), want, "{end}");
    }
    for end in ["{{ ns | tojson }}", "{{ [ns.x, ms.x] | unique | list }}", "{{ {ns.x: 1} }}"] {
        refusal(&format!("{cyclic}{end}"));
    }
    let chain = "{% set ns = namespace(x=none) %}{% for i in range(30000) %}{% set n = namespace(x=ns.x) %}{% set ns.x = n %}{% endfor %}";
    assert_eq!(render(&format!("{chain}{{{{ ns.x.x.x is defined }}}}")).unwrap(), "True");
    assert!(refusal(&format!("{chain}{{{{ ns }}}}")).contains("nested too deeply"));
}

/// A width, a count or a repeated part costs what it writes, so it is refused before anything is written.
#[test]
fn what_multiplies_a_text_is_refused_before_it_is_made() {
    let sources = [
        "'%1000000000d' % 1",
        "'%-1000000000s' % 'x'",
        "'%.1000000000f' % 1.5",
        "'%*d' % (1000000000, 1)",
        "'%.*e' % (1000000000, 1.0)",
        "'%.1000000000d' % 1",
        "'%99999999999999999999999999s' % 1",
        "'%1000000000d'|format(1)",
        "'{:>999999999}'.format('x')",
        "'{:0999999999}'.format(1)",
        "'{:0999999999,}'.format(1)",
        "'{:.999999999f}'.format(1.5)",
        "'{:.999999999e}'.format(1.5)",
        "'{:.999999999g}'.format(1.5)",
        "'{:#.999999999g}'.format(1.5)",
        "'{:.999999999}'.format(1.5)",
        "'{:{w}}'.format(1, w=10**9)",
        "'{:99999999999999999999999999}'.format(1)",
        "'{:é^999999999}'.format(1.5)",
        "'a'.center(10**9)",
        "'a'.ljust(10**9, 'é')",
        "'a'.rjust(10**9)",
        "'a'.zfill(10**9)",
        "'\t'.expandtabs(10**9)",
        "('\t' * 1000).expandtabs(10**6)",
        "'a'|center(10**9)",
        "('a' * 5000000).replace('', 'bbbbbbbbbb')",
        "('a' * 5000000)|replace('a', 'bbbbbbbbbb')",
        "('b' * 5000).join('a' * 9000)",
        "range(100000)|join('b' * 1000)",
        "'a\nb'|indent(10**9)",
        "('a\n' * 5000)|indent(10000)",
        "'a'|indent(10**9, true)",
        "'a'|batch(10**9, 'x')|list",
        "[1]|slice(10**9)|list",
        "[1] * 10**9",
        "(1, 2) * 10**9",
        "'ab' * 10**9",
        "2 ** (10 ** 9)",
        "10 ** 100000 * 10 ** 100000",
        "('a ' * 100000)|wordwrap(1, wrapstring='b' * 1000)",
        "range(10**9)",
        "('<' * 8000000)|escape",
        "('www.a.de ' * 100000)|urlize(rel='x' * 1000)",
        "('a' * 20000000)|list",
        "('é' * 20000000)|urlencode",
        "('a,' * 9000000).split(',')",
        "('a\n' * 9000000).splitlines()",
        "[1, 2]|tojson(indent=10**9)",
        "('aé' * 8000000).upper() ~ ('a' * 16000000)",
        "('a' * 30000000)|pprint",
        "'%s%s' % ('a' * 16000000, 'b' * 16000000)",
        "'{0}{0}{0}'.format('a' * 16000000)",
        "('a' * 100000).translate({97: 'b' * 1000})",
        "('a' * 20000000)|truncate(19000000, true) ~ 'a'",
        "dict.fromkeys('a' * 20000000)",
    ];
    for source in sources {
        let start = std::time::Instant::now();
        refusal(&format!("{{{{ ({source})|length }}}}"));
        assert!(start.elapsed() < std::time::Duration::from_secs(2), "{source}: {:?}", start.elapsed());
    }
    // Within the budget, the same operations return what Python returns.
    let within =
        "{{ ('%1000d' % 1)|length }} {{ 'a'.center(999)|length }} {{ '{:>5000}'.format('x')|length }} {{ ('%.2000f' % 0.1)|length }}";
    assert_eq!(render(within).unwrap(), "1000 999 5000 2002");
}

/// Nesting is limited when a value is made, so no walk overflows the stack.
#[test]
fn deep_values_and_calls_do_not_overflow_the_stack() {
    let grow = |each: &str, end: &str| {
        format!("{{% set ns = namespace(x=[], y='') %}}{{% for i in range(60000) %}}{{% set ns.x = {each} %}}{{% endfor %}}{end}")
    };
    for each in ["[ns.x]", "(ns.x,)", "{'a': ns.x}", "cycler(ns.x)", "[ns.x]|groupby(0)", "{(1, ns.x): 1}.items()", "joiner(ns.x)"] {
        let error = refusal(&grow(each, ""));
        assert!(["nested too deeply", "key", "input allows", "list"].iter().any(|words| error.contains(words)), "{each}: {error}");
    }
    let calls = [
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "{% macro a() %}{% call b() %}{% endcall %}{% endmacro %}{% macro b() %}{{ a() }}{{ caller() }}{% endmacro %}{{ a() }}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% set ns = namespace(x=1) %}{% for i in range(30000) %}{% for y in [ns.x] %}{% set ns.x = loop %}{% endfor %}{% endfor %}",
        "{% macro m() %}{% with %}{% filter upper %}{% set x %}{{ [(m()|string)] }}{% endset %}{% endfilter %}{% endwith %}\
         {% endmacro %}{{ m() }}",
    ];
    for source in calls {
        refusal(source);
    }
}

/// The lexer itself measures the length of a tag, so nothing can hide a chain of thousands of operators. Dropping the tree of such a chain
/// would overflow the stack of a server's thread.
#[test]
fn braces_and_quotes_do_not_hide_the_length_of_a_tag() {
    for (start, end) in [("{{ [{'a':{}}, x", "] }}"), ("{% raw %}{{ '{% endraw %}{{ x", " }}"), ("{# ' #}{{ x", " }}")] {
        for part in ["|e", ".a", "+1", "[a]", "()", " if a", " and a"] {
            let source = format!("{start}{}{end}", part.repeat(20_000));
            assert!(refusal(&source).contains("bytes outside of its strings, expected at most"), "{start}{part}: {}", refusal(&source));
        }
    }
}

/// Values other than lists that hold values: they are freed one after another, or do not nest.
#[test]
fn long_chains_of_values_are_freed_without_recursion() {
    let chains = [
        "{% set ns.x = {}[(ns.x,)] %}",
        "{% if m(ns.x) %}{% endif %}",
        "{% if k(ns.x) %}{% endif %}",
        "{% set ns.x = namespace(x=ns.x) %}",
        "{% for y in [1] %}{% if loop.changed(ns.x) %}{% set ns.x = loop %}{% endif %}{% endfor %}",
    ];
    let macros = "{% macro m(l) %}{% for y in [1] %}{% set ns.x = loop %}{% endfor %}{% endmacro %}\
                  {% macro k(l) %}{% macro n() %}{% endmacro %}{% set ns.x = n %}{% endmacro %}";
    let messages = serde_json::json!(vec![serde_json::json!({ "role": "user", "content": "hi" }); 1000]);
    for chain in chains {
        let source = format!(
            "{{% set ns = namespace(x=1) %}}{macros}{{% for j in range(20) %}}{{% for i in range(100000) %}}{chain}{{% endfor %}}\
             {{% endfor %}}"
        );
        let input = RenderInput { messages: messages.clone(), ..RenderInput::default() };
        let error = template(&source).unwrap().render(&input).expect_err(chain).to_string();
        assert!(error.contains("input allows for") || error.contains("too many steps"), "{chain}: {error}");
    }
}

/// Each of these would take minutes or gigabytes if only its result were charged.
#[test]
fn what_an_operation_repeats_is_charged_each_time() {
    let names = "{% set d = dict.fromkeys(range(100000)|map('string')) %}";
    let sources = [
        format!("{names}{{% for i in range(100000) %}}{{{{ 'x'.format(**d) }}}}{{% endfor %}}"),
        format!("{names}{{{{ ('{{z}}' * 1000000).format(z='', **d) }}}}"),
        "{{ 'a'|map(*(['map'] * 100000))|list }}".to_owned(),
        "{{ 'a'|map(*(['map'] * 20000 + ['upper']))|list }}".to_owned(),
        "{{ range(100000)|map(attribute='a.' * 1000000, default={})|list }}".to_owned(),
        "{{ ([2**65000] * 400000)|map('abs')|list|length }}".to_owned(),
        "{{ dict.fromkeys(range(100000), 'a' * 1000000)|urlencode }}".to_owned(),
        "{{ dict.fromkeys(range(100000)|map('string'), 'a' * 1000000)|xmlattr }}".to_owned(),
        "{{ {'k' * 1000000: 'a\n' * 1000000}|pprint }}".to_owned(),
        "{{ ('[' ~ ('{},' * 5000000) ~ '1]')|from_json|length }}".to_owned(),
        "{{ ('x ' * 100000)|urlize(extra_schemes=['abc:'] * 100000) }}".to_owned(),
    ];
    for source in sources {
        let start = std::time::Instant::now();
        let error = refusal(&source);
        eprintln!("{source:.90}: {:?}, {error}", start.elapsed());
        assert!(start.elapsed() < std::time::Duration::from_secs(4), "{source:.90}: {:?}", start.elapsed());
    }
    // The same operations on a large scale that a render can afford.
    let within = [
        (format!("{names}{{{{ dict(**d)|length }}}}"), "100000"),
        ("{{ range(100000)|map('attr', 'bit_length')|unique|list|length }}".to_owned(), "100000"),
        ("{{ ('&' * 1000000)|striptags|length }} {{ 'a'|map('map', 'map', 'upper')|list|length }}".to_owned(), "1000000 1"),
    ];
    for (source, want) in within {
        let start = std::time::Instant::now();
        assert_eq!(render(&source).unwrap(), want, "{source}");
        assert!(start.elapsed() < std::time::Duration::from_secs(4), "{source}: {:?}", start.elapsed());
    }
}

/// A search makes no text, so only its work is charged.
#[test]
fn searching_a_long_text_again_and_again_is_stopped() {
    let long = format!("{}y", "x".repeat(1_000_000));
    let messages = serde_json::json!([{ "role": "user", "content": long }]);
    let searches = [
        "t.count('xy')",
        "t.find('y')",
        "t.rfind('a')",
        "t.split('a') | length",
        "t.startswith(t)",
        "'y' in t",
        "'a' not in t",
        "'a' is in t",
        "t is eq t",
        "t == t",
        "t[-1:]",
        "(t)[5:6]",
        "messages[0].content[-1:]",
        "messages[0]['content'][:-1][1:2]",
        "(t | trim)[-1:]",
        "t | length",
        "t | last",
        "[t, t] | unique | list | length",
        "t in [t]",
        "t | replace('a', 'b') | length",
    ];
    for search in searches {
        let body = format!("{{% if {search} %}}{{% endif %}}");
        let source = format!("{{% set t = messages[0].content %}}{{% for i in range(30000) %}}{body}{{% endfor %}}");
        let start = std::time::Instant::now();
        let input = RenderInput { messages: messages.clone(), ..RenderInput::default() };
        let error = template(&source).unwrap().render(&input).expect_err(search).to_string();
        eprintln!("{search}: {:?}, {error}", start.elapsed());
        assert!(start.elapsed() < std::time::Duration::from_secs(5), "{search}: {:?}", start.elapsed());
        assert!(error.contains("input allows for"), "{search}: {error}");
        let once = template(&format!("{{% set t = messages[0].content %}}{body}done")).unwrap();
        assert_eq!(once.render(&input).unwrap(), "done", "{search}");
    }
}

#[test]
fn metered_operators_give_the_results_of_jinja() {
    let cases = [
        ("{{ 1 + 2 * 3 - 4 }} {{ (1 + 2) * 3 }} {{ 2 * 1.5 }} {{ 1 + 1.5 }} {{ -1 + 2 }}", "3 9 3.0 2.5 1"),
        ("{{ 'a' ~ 1 ~ none ~ [1, 'x'] }} {{ 'a' + 'b' + 'c' }} {{ 'ab' * 2 }} {{ 2 * 'ab' }}", "a1None[1, 'x'] abc abab abab"),
        ("{{ [1] + [2] + [3] }} {{ ([1] + [2])[1] }} {{ [1, 2] * 2 }} {{ ((1, 2) + (3,)) }}", "[1, 2, 3] 2 [1, 2, 1, 2] (1, 2, 3)"),
        ("{{ ('a' ~ 'b')|upper ~ 'c' }} {{ ('x' + 'y') == 'xy' }} {{ 'b' in 'a' ~ 'b' }} {{ not 'a' ~ '' }}", "ABc True True False"),
        ("{{ 'a,b'.split(',')[1:][0] }} {{ 'abc'[1:] ~ 'abc'[:-1] }} {{ -('2'|int) + 3 }} {{ 'x' if 1 + 1 == 2 else 'y' }}", "b bcab 1 x"),
        (
            "{% set t = 'abcd' %}{{ t[1:][1:] }} {{ (t)[1:] }} {{ (t ~ t)[3:5] }} {{ (t if t else 1)[:1] }} \
             {{ (t|upper)[1:].lower()[1:] }} \
             {{ [t, t][0][2:] }} {{ messages[0].role[1:] ~ -(t|length) }} {{ messages[::-1][0]['role'][:2] }} {{ not t[9:] }}",
            "cd bcd da a cd cd ser-4 us True",
        ),
        ("{% set x | upper %}a{{ 'b' }}{% endset %}{{ x }}{% for k, v in {'a': 1}.items() if v + 1 > 1 %}{{ k ~ v }}{% endfor %}", "ABa1"),
        ("{% macro m(a, b='x' ~ 'y') %}{{ a ~ b }}{% endmacro %}{{ m(1) ~ m(2, b=3) }}{{ dict(a='x' + 'y') }}", "1xy23{'a': 'xy'}"),
        ("{{ '<b>'|safe + '<i>' }} {{ '<b>' + '<i>' }} {{ '<b>'|safe ~ '<i>' }}", "<b>&lt;i&gt; <b><i> <b><i>"),
        (
            "{{ [1, 2] is eq [1, 2] }} {{ 3 is in [1, 2 + 1] }} {{ messages|selectattr('role', 'equalto', 'us' ~ 'er')|list|length }}",
            "True True 1",
        ),
    ];
    for (source, want) in cases {
        assert_eq!(render(source).unwrap(), want, "{source}");
    }
    assert!(refusal("\n{{ 'a' + 1 }}").contains("line 2: `+` does not work on str and int"));
    let kwargs = Map::from_iter([("pen__add".into(), Value::Null)]);
    assert!(matches!(
        template("x").unwrap().render(&RenderInput { kwargs, ..RenderInput::default() }),
        Err(TemplateError::Invalid(text)) if text.contains("pen__add")
    ));
}

#[test]
fn a_long_conversation_has_a_larger_budget() {
    let source = "{% set ns = namespace(x='') %}{% for m in messages %}{% set ns.x = ns.x ~ m.content.strip() %}{% endfor %}{{ ns.x }}";
    let long = "word ".repeat(1_000_000);
    let messages =
        serde_json::json!([{ "role": "user", "content": long }, { "role": "user", "content": long }, { "role": "user", "content": "end" }]);
    let text = template(source).unwrap().render(&RenderInput { messages, ..RenderInput::default() }).unwrap();
    assert_eq!(text.len(), 2 * (long.len() - 1) + 3);
}

#[test]
fn the_text_of_raise_exception_is_kept() {
    let raised = render("{{ raise_exception('roles must <alternate>') }}");
    assert!(matches!(raised, Err(TemplateError::Raised(text)) if text == "roles must <alternate>"));
}

#[test]
fn kwargs_may_not_override_what_the_request_says() {
    let template = template("{{ enable_thinking }} {{ messages | length }} {{ tools is none }}").unwrap();
    let with = |name: &str| {
        let mut input = RenderInput { messages: serde_json::json!([]), ..RenderInput::default() };
        input.kwargs.insert(name.into(), Value::Bool(false));
        template.render(&input)
    };
    assert_eq!(with("enable_thinking").unwrap(), "False 0 True");
    for name in RESERVED {
        assert!(matches!(with(name), Err(TemplateError::Invalid(text)) if text.contains(name)), "{name}");
    }
}

#[test]
fn tojson_gives_the_output_of_python() {
    let cases = [
        ("{{ {'a': [1, 2.0, 1e16, 0.00001, none, true], 'b': {}} | tojson }}", r#"{"a": [1, 2.0, 1e+16, 1e-05, null, true], "b": {}}"#),
        ("{{ {'b': [], 'a': {'c': 1}} | tojson(indent=2) }}", "{\n  \"b\": [],\n  \"a\": {\n    \"c\": 1\n  }\n}"),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}", r#"{"a":2,"b":1}"#),
        ("{{ '<é&\"\\n\\'>' | tojson }}", r#""<é&\"\n'>""#),
        ("{{ 'é🦙' | tojson(ensure_ascii=true) }}", r#""\u00e9\ud83e\udd99""#),
    ];
    for (source, want) in cases {
        assert_eq!(render(source).unwrap(), want, "{source}");
    }
    assert!(refusal("{{ missing | tojson }}").contains("JSON serializable"));
    assert!(refusal("{{ [[1]] | tojson(indent='a' * 65) }}").contains("indent must be"));
}

#[test]
fn generation_tags_print_nothing() {
    let source = "a\n  {% generation %}\nb\n{%- generation -%}\n c {% endgeneration %}\n{% endgeneration %}{{ '{% generation' }}";
    assert_eq!(render(source).unwrap(), "a\nbc {% generation");
}

/// `cargo test --release --lib template::tests::speed -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn speed() {
    let dir = fixtures::golden("templates");
    for name in ["smollm2", "Qwen-Qwen3-0.6B", "meta-llama-Llama-3.1-8B-Instruct", "openai-gpt-oss-120b"] {
        let template = template(&std::fs::read_to_string(dir.join(format!("{name}.jinja"))).unwrap()).unwrap();
        let input = case_input(&read(&dir.join("cases.json"))[2]);
        let start = std::time::Instant::now();
        for _ in 0..1000 {
            std::hint::black_box(template.render(&input).unwrap());
        }
        eprintln!("{name}: {:?} a render", start.elapsed() / 1000);
    }
}

#[test]
fn a_template_that_loops_over_absent_tools_sees_none() {
    assert_eq!(render("a{% for tool in tools %}{{ tool }}{% endfor %}b{{ tools is none }}").unwrap(), "abFalse");
    assert_eq!(render("{{ tools is none }}").unwrap(), "True");
    assert_eq!(refusal("{% for tool in tools %}{% endfor %}{{ 1 + 'a' }}"), refusal("{% for tool in none %}{% endfor %}"));
}
