"""The templates for make_jinja.py, grouped by topic."""

VALUES = [
    "'abc'", "''", "'A1'", "' '", "'ÄÖ'", "1", "0", "-3", "2.0", "2.5", "true", "false", "none", "[]", "[1, 2]", "()", "(1,)", "{}",
    "{'a': 1}", "range(3)", "missing", "messages", "messages[0].nope", "12345678901234567890", "'x'|safe", "namespace(a=1)", "{}.items()",
    "messages|map('upper')", "range", "'a'.upper",
]  # fmt: skip
TESTS = [
    "odd", "even", "divisibleby(2)", "divisibleby(num=3)", "defined", "undefined", "filter", "test", "none", "boolean", "false", "true",
    "integer", "float", "lower", "upper", "string", "mapping", "number", "sequence", "iterable", "callable", "sameas(none)", "sameas(true)",
    "sameas 1", "escaped", "in [1, 'abc', none]", "in 'xabcx'", "in {'a': 1, 1: 2}", "== 1", "eq 'abc'", "equalto([1, 2])", "!= 1", "ne(2)",
    "> 1", "gt 'abb'", "greaterthan(0)", ">= 2", "ge(1)", "< 2", "lt 'b'", "lessthan(5)", "<= 1", "le(2.0)", "not none", "not string",
    "nothing", "defined(1)", "in(seq=[1])",
]  # fmt: skip
OPERANDS = [
    "1", "-7", "2.5", "true", "'ab'", "'3'", "[1]", "(1, 2)", "{'a': 1}", "none", "missing", "0", "10 ** 20", "'%s'", "range(2)", "-0.0",
]  # fmt: skip
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
FORMATS = [
    "", "d", "5", "<6", ">6", "^7", "=6", "*^9", "+", " ", "-", "06", "+08.2f", ".2f", ".0f", "#.0f", "e", ".3e", "E", "g", ".3g", "#g", "G",
    "%", ".1%", "x", "X", "#x", "#X", "b", "#b", "o", "#o", "c", "n", ",", "_", ",.2f", "012,", "015,.3f", "_x", "08b", "#010x", "s", ".2s",
    "10s", "é<5", "<<4", "z", "z.1f", ".10", ".2", ".1", "5.1", "q", "5x5", "1.", ",d", ",s", "=5s", "+s", "0>5", "010", "é^8.2",
]  # fmt: skip
PERCENTS = [
    "s", "r", "a", "d", "i", "u", "x", "X", "o", "e", "E", "f", "F", "g", "G", "c", "5s", "-5s", ".2s", "05d", "+d", " d", "-6d", "+.1f", "#x",
    "#o", "08.2f", ".0f", "#.0f", ".3d", "010.3e", "z", "ld", "%",
]  # fmt: skip
TEXTS = ["'Hello World'", "'  a b  c '", "''", "'ÄßǆΣ one-two'", "'a,b,,c'", "'12'", "'x\\ty\\r\\nz\\n'", "'<b>&'|safe"]
METHODS = [
    (
        TEXTS,
        [
            ".capitalize()", ".casefold()", ".center(9)", ".center(12, '*')", ".count('o')", ".count('')", ".count('l', 3)", ".count('l', 1, -2)",
            ".endswith('d')", ".endswith(('x', 'd'))", ".endswith('', 50)", ".expandtabs()", ".expandtabs(4)", ".expandtabs(tabsize=2)",
            ".find('o')", ".find('o', 5)", ".find('')", ".find('zz')", ".format()", ".index('o')", ".index('zz')", ".isalnum()", ".isalpha()",
            ".isascii()", ".isdecimal()", ".isdigit()", ".isidentifier()", ".islower()", ".isnumeric()", ".isprintable()", ".isspace()",
            ".istitle()", ".isupper()", ".join(['a', 'b'])", ".join('xyz')", ".join([1])", ".ljust(14)", ".ljust(14, '.')", ".lower()",
            ".lstrip()", ".lstrip('H ')", ".partition(' ')", ".partition('')", ".removeprefix('He')", ".removesuffix('ld')",
            ".replace('o', '0')", ".replace('', '-')", ".replace('l', 'L', 1)", ".replace('l', 'L', -1)", ".replace('a')", ".rfind('o')",
            ".rfind('o', 0, 6)", ".rindex('l')", ".rjust(14, '_')", ".rjust(14, 'ab')", ".rpartition('o')", ".rsplit()", ".rsplit(' ', 1)",
            ".rsplit(maxsplit=1)", ".rstrip()", ".rstrip('dc \\n')", ".split()", ".split(',')", ".split(None, 1)", ".split(' ')",
            ".split(sep=',', maxsplit=2)", ".split('')", ".splitlines()", ".splitlines(true)", ".splitlines(keepends=true)",
            ".startswith('H')", ".startswith('W', 6)", ".startswith(('a', 'H'))", ".startswith(1)", ".strip()", ".strip('H d')", ".swapcase()",
            ".title()", ".translate({97: 'A', 98: none, 111: 48})", ".upper()", ".zfill(14)", ".zfill(2)", "[1]", "[-1]", "[99]", "[::2]",
            "[::-1]", "[2:-2]", "[-3:]", "[:0]", "['length']", ".nope", ".nope()", "|length", "|first", "|last", "|list", "|reverse",
            "[1:2:0]", "['a']", ".__class__", ".upper", ".upper(1)", ".split(limit=1)",
        ],
    ),
    (
        ["[3, 1, 3]", "(3, 1)", "range(2, 9, 3)", "[]"],
        [
            ".count(3)", ".index(1)", ".index(9)", ".index(3, 1)", ".copy()", ".append(1)", ".pop()", ".sort()", "[0]", "[-1]", "[5]", "[1:]",
            "[::-1]", "[::2]", "['x']", "[none]", "[true]", "[1.0]", "|length", "|list", "|first", "|last", "|reverse|list", "|sum", "|max",
            "|min", "|sort", "|unique|list", "|string", "|join('-')", "[0:2]", "[:-1]", "|batch(2)|list", "|slice(2)|list", "|random is number",
        ],
    ),
    (
        ["{'b': 1, 'a': 'x', 3: none}", "{}", "{'items': 1, 'get': 2}"],
        [
            ".get('a')", ".get('z')", ".get('z', 5)", ".get()", ".keys()", ".values()", ".items()", ".keys()|list", ".items()|list",
            ".items()|first", ".values()|last", ".keys()[0]", ".copy()", ".update({})", ".pop('a')", ".a", ".z", "['a']", "[3]", "['z']",
            "['items']", ".fromkeys([1, 2])", "|length", "|list", "|first", "|items|list", "|dictsort", "|tojson", "|string", "[1:]", "|d('x')",
            "|join(',')", "|sort", "|reverse|list", ".setdefault", ".keys()|length", ".items()|sort|list", "|urlencode", "|xmlattr", "[[1]]",
        ],
    ),
    (
        ["5", "(-5)", "2.5", "true", "10.0", "(10 ** 25)"],
        [
            ".bit_length()", ".bit_count()", ".is_integer()", ".real", ".imag", ".numerator", ".denominator", ".conjugate()", "|abs", "|int",
            ".as_integer_ratio()", "|float", "|round", "|round(1)", "|round(-1)", "|round(1, 'ceil')", "|round(method='floor')", "|string",
            "|filesizeformat", "|filesizeformat(true)", "|filesizeformat(binary=true)", "|round(precision=2)", "|round(0, 'odd')", "|length",
        ],
    ),
]  # fmt: skip
NUMBERS = [
    "'3'", "' 42 '", "'3.7'", "'x'", "''", "'0x1f'", "'1f'", "'1_000'", "'١٢'", "'inf'", "'nan'", "'1e3'", "'-0'", "'+5'", "'0b101'", "'0o17'",
    "3.9", "-3.9", "true", "none", "[]", "missing", "1e20", "'1.5e400'", "'.5'", "'5.'", "'--1'",
]  # fmt: skip
PRODUCTS = [
    (NUMBERS, ["|int", "|int(7)", "|int(default=7)", "|int(7, 16)", "|int(base=0)", "|int(base=2)", "|float", "|float(1.5)", "|float(default=none)"]),
    (
        ["'x'", "''", "none", "false", "0", "[]", "missing", "messages[0].nope", "messages[9]"],
        ["|default", "|default('d')", "|d('d', true)", "|default(default_value='d')", "|default('d', boolean=true)", "|default(none)", " is defined",
         "|default(boolean=true, default_value=[1])", "|string", "|length", "|list", "|first", "|join", "|upper", "|trim", "|tojson", "|int", "|safe"],
    ),
    (
        ["'hello big-world (of) <x>'", "'ÉCOLE d\\'été'", "none", "42", "'a\\nb\\n\\nc'", "'<b>a & b</b>'", "['a', 'b']"],
        ["|upper", "|lower", "|capitalize", "|title", "|trim", "|trim('h<c')", "|trim(chars='a')", "|center(12)", "|center(width=9)", "|center",
         "|replace('l', 'L')", "|replace(old='b', new='B', count=1)", "|replace('a', 1)", "|escape", "|e", "|forceescape", "|safe", "|striptags",
         "|string", "|wordcount", "|indent", "|indent(2)", "|indent(width='> ')", "|indent(2, true)", "|indent(first=true, blank=true)", "|urlencode",
         "|indent(width=1, blank=true)", "|truncate(9)", "|truncate(length=9, killwords=true)", "|truncate(9, true, '')", "|truncate(9, leeway=0)",
         "|truncate(9, false, '…', 0)", "|truncate(2)", "|wordwrap(6)", "|wordwrap(width=4, break_long_words=false)", "|wordwrap(5, wrapstring='|')",
         "|wordwrap(7, break_on_hyphens=false)", "|wordwrap(0)", "|list", "|reverse", "|length", "|first", "|format", "|pprint", "|tojson",
         "|join('-')", "|attr('upper')", "|attr('nope')", "|attr(name='nope')", "|batch(4)|list", "|xmlattr", "|dictsort", "|items|list"],
    ),
    (
        ["['b', 'A', 'c', 'a']", "[3, 1.5, true, 2]", "[{'n': 'b', 'v': 1}, {'n': 'A', 'v': 2}, {'n': 'B', 'v': 0}]", "[1, 'a']", "'hello'", "[]",
         "[[2, 1], [1, 2], [1]]", "[none, 1]", "7"],
        ["|sort", "|sort(true)", "|sort(reverse=true)", "|sort(case_sensitive=true)", "|sort(attribute='n')", "|sort(attribute='n,v')",
         "|sort(attribute='v', reverse=true)", "|sort(false, true, 'n')", "|unique|list", "|unique(true)|list", "|unique(case_sensitive=true)|list",
         "|unique(attribute='n')|list", "|min", "|max", "|min(true)", "|max(case_sensitive=true)", "|min(attribute='v')", "|max(attribute='n')", "|sum",
         "|sum('v')", "|sum(attribute='v')", "|sum(start=10)", "|sum(attribute='v', start=5)", "|map('string')|list", "|map(attribute='n')|list",
         "|map(attribute='x', default='d')|list", "|map(attribute=0)|list", "|map(attribute='x')|list", "|map('upper')|list", "|map('nope')|list", "|map|list",
         "|map('default', 'z')|join", "|map('replace', 'a', 'b')|list", "|map('int', default=5)|list", "|map('round', precision=1)|list",
         "|select|list", "|select('odd')|list", "|select('string')|list", "|select('gt', 1)|list", "|reject('none')|list", "|reject|list",
         "|select('in', ['a', 1])|list", "|selectattr('v')|list", "|selectattr('v', 'gt', 0)|list", "|rejectattr('n', 'equalto', 'A')|list", "|rejectattr('v')|list",
         "|selectattr('x', 'undefined')|list", "|selectattr|list", "|select('nope')|list", "|groupby('n')", "|groupby('n', case_sensitive=true)",
         "|groupby('x', default=0)", "|groupby(attribute='v')|map('list')|list", "|groupby('n')|map(attribute='grouper')|list", "|groupby(0)|list",
         "|batch(2)|list", "|batch(linecount=3, fill_with='-')|list", "|slice(2)|list", "|slice(slices=3, fill_with='-')|list", "|first", "|last", "|join",
         "|join(',')", "|join(d='; ')", "|join(',', attribute='n')", "|join(',', 'v')", "|length", "|count", "|reverse|list", "|tojson", "|pprint", "|list",
         "|map(attribute='n')|map('lower')|unique|sort|join('+')", "|select('string')|length", "|map('upper')|first", "|map('abs')|last", "|slice(0)|list"],
    ),
    (
        ["{'b': 1, 'a': [1, {'x': 2.0}], 'é<': none}", "[1.0, 1e16, 1e-7, 0.1, -0.0, 1e22, 123456789.123]", "'\\u2028</script>\\x7f\\x00\\t\"\\\\é🧩'", "{1: 2, true: 3, none: 4, 2.5: 5}",
         "(1, 2)", "[]", "{}", "none", "missing", "range(2)", "[[], {}]", "[1, 'a']|map('string')", "{(1, 2): 3}", "{'b': 1, 1: 2}"],
        ["|tojson", "|tojson(indent=2)", "|tojson(indent=0)", "|tojson(indent='--')", "|tojson(true)", "|tojson(ensure_ascii=true)", "|tojson(sort_keys=true)",
         "|tojson(separators=(',', ':'))", "|tojson(indent=4, separators=(',', ': '), sort_keys=true)", "|tojson(false, 1)", "|tojson(indent=none)", "|string", "|pprint", "|length", "|tojson(x=1)"],
    ),
]  # fmt: skip
# One template per line.
_STATEMENTS = """
{% for x in [1, 2, 3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}
{% for x in 'abc' %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}
{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }}{% if loop.changed(x, 1) %}!{% endif %} {% endfor %}
{% for x in range(4) %}{{ loop.cycle('a', 'b', 'c') }}{% endfor %}
{% for x in [1] %}{{ loop.cycle() }}{% endfor %}
{% for x in range(6) if x is odd %}{{ x }}/{{ loop.index }}/{{ loop.length }}/{{ loop.last }}/{{ loop.nextitem }} {% endfor %}
{% for x in range(5)|select('odd') %}{{ x }}{{ loop.length }}{{ loop.revindex }}{{ loop.last }} {% endfor %}
{% for x in [] %}a{% else %}none{% endfor %}|{% for x in [1] if x > 1 %}a{% else %}none{% endfor %}
{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for a, b in {'x': 1, 'y': 2}.items() %}{{ a }}{{ b }}{% endfor %}|{% for k in {'x': 1} %}{{ k }}{% endfor %}
{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}
{% for a, b in [1] %}{{ a }}{% endfor %}
{% for x in none %}{% endfor %}
{% for x in missing %}a{% else %}b{% endfor %}
{% for x in 5 %}{% endfor %}
{% for loop in [1] %}{% endfor %}
{% for x in [[1, [2]], [3]] recursive %}{% if x is iterable %}[{{ loop(x) }}]{% else %}{{ x }}:{{ loop.depth }}{{ loop.depth0 }}{% endif %}{% endfor %}
{% for x in [1] %}{{ loop([2]) }}{% endfor %}
{% for x in [1, 2] %}{% for y in [1, 2] %}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor %}
{% for x in [1, 2] %}{% set o = loop %}{% for y in [1, 2] %}{{ o.index }}{{ loop.index }} {% endfor %}{% endfor %}
{% for x in [3] %}{% endfor %}{{ x }}|{{ loop }}
{% for x in [1, 2] %}{{ loop }}{% endfor %}
{% for m in messages if m.role != 'tool' %}{{ m.role }}{% if not loop.last %}, {% endif %}{% endfor %}
{% set ns = namespace(found=false) %}{% for x in [1, 2, 3] if not ns.found %}{% if x == 2 %}{% set ns.found = true %}{% endif %}{{ x }}{% endfor %}
{% for x in range(3) %}{{ x }}{{ ',' if not loop.last }}{% endfor %}
{% for x in 'ab' recursive %}{{ x }}{% endfor %}
{% break %}
{% for x in [1, 2] %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}
{% if 0 %}a{% elif '' %}b{% elif [0] %}c{% else %}d{% endif %}{% if missing %}a{% else %}b{% endif %}
{% if messages is defined and messages|length > 2 and not messages[9] %}ok{% endif %}
{% set x = 5 %}{% if true %}{% set x = 6 %}{% endif %}{{ x }}{% for i in [1] %}{% set x = 7 %}{{ x }}{% endfor %}{{ x }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d) = [3, 4] %}{{ c }}{{ d }}{% set t = 1, %}{{ t }}
{% set a, b = 1 %}
{% set a, b = [1] %}
{% set x %}abc{{ 1 + 1 }}{% endset %}{{ x }}|{% set y | upper | replace('B', 'x') %}abc{% endset %}{{ y }}
{% set ns = namespace(a=1, b='x') %}{% set ns.a = ns.a + 1 %}{{ ns.a }}{{ ns.b }}{{ ns.c }}{{ ns }}
{% set ns = namespace({'k': 1}, z=2) %}{{ ns.k }}{{ ns.z }}{{ ns['k'] }}{{ ns.c is defined }}
{% set ns = namespace() %}{% set ns.x %}body{% endset %}{{ ns.x }}
{% set d = {} %}{% set d.x = 1 %}
{% set missing2.x = 1 %}
{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}|{{ a }}|{% set a = 5 %}{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}
{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}
{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, c=3) }}|{{ m() }}|{{ m(b=1, a=2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(x=2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}
{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}|{{ m() }}
{% macro m() %}{{ varargs|join('-') }}{{ kwargs|dictsort }}{% endmacro %}{{ m(1, 'b', z=1, y=2) }}{{ m(*[1, 2], **{'q': 3}) }}
{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, 2) }}
{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}body{% endcall %}
{% macro m() %}{% for x in [1, 2] %}{{ caller(x, k=x * 2) }}{% endfor %}{% endmacro %}{% call(a, k=0) m() %}{{ a }}{{ k }};{% endcall %}
{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}
{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}{% call m() %}{% endcall %}
{% macro m() %}x{% endmacro %}{% call m() %}body{% endcall %}
{% macro m(caller=none) %}{{ caller() if caller else 'no' }}{% endmacro %}{{ m() }}{% call m() %}y{% endcall %}
{% macro m(a) %}{% endmacro %}{{ m }}{{ m.name }}{{ m.arguments }}{{ m.catch_varargs }}{{ m.caller }}
{% macro m() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ m() }}{% set x = 2 %}{{ m() }}
{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}b{% endmacro %}{{ a() }}
{% macro f(n) %}{{ n if n < 2 else n * f(n - 1)|int }}{% endmacro %}{{ f(6) }}
{% macro m() %}{% set q = 1 %}{% endmacro %}{{ m() }}{{ q }}
{{ m() }}{% macro m() %}late{% endmacro %}
{% filter upper %}abc{{ 'd' }}{% endfilter %}|{% filter replace('a', 'b')|title %}aa ab{% endfilter %}
{% filter nope %}x{% endfilter %}
{% block x %}a{{ 1 }}{% endblock %}{% block y %}b{% endblock y %}
{% block x %}{% endblock %}{% block x %}{% endblock %}
{% for i in [1, 2] %}{% block b %}[{{ i }}]{% endblock %}{% endfor %}
{% for i in [1, 2] %}{% block c scoped %}[{{ i }}]{% endblock %}{% endfor %}
{% autoescape true %}{{ '<a>' }}{{ '<b>'|safe }}{{ '<c>' ~ '<d>'|safe }}{% set x %}<x>{% endset %}{{ x }}{% endautoescape %}{{ '<e>' }}
{% do [1].append(2) %}
{% include 'x' %}
{% import 'x' as y %}
{% from 'x' import y %}
{% extends 'x' %}
{% if false %}{% include 'x' %}{% endif %}ok
{% generation %}a{% set g = 1 %}{{ g }}{% endgeneration %}{{ g }}
{% print 1, 'a' %}
{% raw %}{{ x }}{% endraw %}|{% raw -%}  {% y %} {%- endraw %}|
{# comment #}a{#- b -#} c {#+ d +#} e
{% unknown %}
{% if true %}
{% endfor %}
{{ 1
{{ 'a }}
{% endif %}
{{ }}
{{ 1 2 }}
{{ (1, }}
{{ [1, 2,] }}{{ (1, 2,) }}{{ {'a': 1,} }}{{ [] }}{{ () }}{{ {} }}
{{ [1 2] }}
{{ a b }}
{{ 1if true }}{{ 1 if false else 2 if false else 3 }}
{{ 'x' if false }}|{{ ('x' if false) is defined }}
{{ ('x' if false).y }}
{{ 1 < 2 < 3 }}{{ 3 > 2 > 2 }}{{ 1 == 1.0 == true }}{{ 1 < 3 < 2 }}{{ 'a' in 'abc' in ['abc'] }}
{{ not 1 == 2 }}{{ not true and false }}{{ not (true and false) }}{{ true or missing.x }}{{ false and missing.x }}
{{ 1 or 2 }}{{ 0 or '' }}{{ [] or 'x' }}{{ 1 and 'y' }}{{ none and 1 }}
{{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 2 ** -1 }} {{ -1|abs }} {{ (-1)|abs }} {{ - 1 }} {{ +1 }} {{ --1 }} {{ -'a' }}
{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 // -2 }} {{ 7 % -3 }} {{ -7 % 3 }} {{ -7.5 % 2 }} {{ 7.5 // 2 }} {{ 1 / 3 }} {{ 4 / 2 }} {{ 1e3 }} {{ 1e16 }} {{ 1.0e-5 }}
{{ 1 / 0 }}
{{ 1 // 0 }}
{{ 1 % 0 }}
{{ 0 ** -1 }}
{{ 2.0 ** 5000 }}
{{ 12345678901234567890 * 98765432109876543210 }} {{ 2 ** 200 }} {{ -(2 ** 70) // 3 }} {{ 2 ** 70 % 1000 }} {{ (2 ** 70) / 2 }} {{ 2 ** 64 == 2.0 ** 64 }}
{{ 9223372036854775807 + 1 }} {{ -9223372036854775808 - 1 }} {{ 4611686018427387904 * 2 }} {{ -9223372036854775808 // -1 }}
{{ 0x1f }} {{ 0b101 }} {{ 0o17 }} {{ 1_000 }} {{ 1_0.5 }} {{ 0xFF_FF }} {{ 00 }} {{ 1.5e3 }}
{{ 0.1 + 0.2 }} {{ 1e22 }} {{ 1e21 + 1 }} {{ 123456789012345680.0 }} {{ 5e-324 }} {{ 1.7976931348623157e308 }} {{ 1e400 }} {{ 100.0 }} {{ 1.10 }}
{{ 'a' 'b' "c" }} {{ 'it\\'s' }} {{ "q\\"q" }} {{ 'a\\nb\\tc\\\\d' }} {{ '\\x41\\u00e9\\101' }} {{ '\\q' }}
{{ '\\x4' }}
{{ ['it\\'s', 'say "hi"', 'both \\' and "', 'tab\\t', 'nul\\0', 'é🧩', '\\u200b', '\\xa0', '\\x7f', '\\\\'] }}
{{ [1, 2.0, none, true, 'a', [1], (1,), (), {}, {'a': (1, 2)}] }}
{{ {'a': {'b': [none, {'c': 1.5}]}, 1: 2, 1.5: 3, none: 4, true: 5, (1, 2): 6} }}
{{ {1: 'a', true: 'b', 1.0: 'c'} }} {{ {'a': 1, 'a': 2} }} {{ {1: 2}[true] }} {{ {1.0: 2}[1] }}
{{ {[1]: 2} }}
{{ {{}: 2} }}
{{ [1, 2, 3][1:] }} {{ [1, 2, 3][:-1] }} {{ [1, 2, 3][::-1] }} {{ [1, 2, 3][-2] }} {{ 'abc'[1:2] }} {{ (1, 2, 3)[::2] }} {{ [1, 2][5:] }} {{ [1, 2, 3, 4][3:0:-2] }} {{ range(10)[2:8:3]|list }}
{{ [1, 2, 3][none:none:none] }} {{ [1][missing:] }}
{{ 'abc'['a':] }}
{{ {}[1:2] }}
{{ missing[1:] }}
{{ [[1, 2], [3, 4]][1][0] }} {{ messages[0]['role'][0] }} {{ messages.0.role }} {{ messages[-1].role }}
{{ missing }}|{{ missing is undefined }}|{{ messages[0].nope }}|{{ messages[0]['nope'] }}|{{ [][0] }}|{{ {}.x }}
{{ missing.x }}
{{ missing['x'] }}
{{ missing() }}
{{ missing + 1 }}
{{ 1 + missing }}
{{ -missing }}
{{ missing < 1 }}
{{ missing == missing }}{{ missing == none }}{{ missing != 1 }}{{ missing in [1] }}{{ 1 in missing }}{{ missing ~ 'a' }}{{ [missing] }}{{ missing|list }}{{ missing|length }}
{{ missing in 'abc' }}
{{ messages.nope() }}
{{ messages[0].nope.x }}
{{ none.x }} {{ (1).x }} {{ true.x }} {{ none['x'] }}
{{ none.x.y }}
{{ none() }}
{{ 'a'() }}
{{ [].append(1) }}
{{ {}.update({}) }}
{{ {}.pop is defined }} {{ [].append is defined }} {{ ''.__class__ is defined }} {{ {}.keys is defined }}
{{ 'a' + 1 }}
{{ 1 + 'a' }}
{{ [1] + (2,) }}
{{ 'a' * 'b' }}
{{ 'ab' * 3 }}{{ 3 * 'ab' }}{{ 'ab' * -1 }}{{ [1] * 2 }}{{ (1, 2) * 2 }}{{ true * 3 }}{{ 'a' * true }}{{ true + true }}
{{ 'a' * 1.5 }}
{{ 'a' < 1 }}
{{ none < 1 }}
{{ [1] < [1, 2] }}{{ (1, 2) < (1, 3) }}{{ 'a' < 'b' }}{{ 'B' < 'a' }}{{ true < 2 }}{{ [1, 'a'] < [2, 1] }}{{ 1 < 1.5 }}{{ 10 ** 30 > 1e29 }}
{{ {} < {} }}
{{ [1] == [1.0] }}{{ (1,) == [1] }}{{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} }}{{ 'a' == 'a' }}{{ none == false }}{{ 0 == false }}{{ '' == false }}{{ range(3) == range(0, 3) }}
{{ 1 in [true] }}{{ 'b' in {'b': 1} }}{{ 'ab' in 'cab' }}{{ '' in 'a' }}{{ 2 in range(3) }}{{ 2.0 in range(3) }}{{ [1] in [[1]] }}{{ none in [none] }}{{ 1 in {1: 2}.values() }}{{ ('a', 1) in {'a': 1}.items() }}
{{ 1 in 'abc' }}
{{ 1 in 5 }}
{{ [1] in {} }}
{{ 1 ~ none ~ true ~ 1.0 ~ [1] ~ missing ~ 'x' }}
{{ range(5)|list }}{{ range(1, 3)|list }}{{ range(5, 0, -2)|list }}{{ range(3) }}{{ range(1, 5, 2) }}{{ range(0)|list }}{{ range(3)|length }}{{ range(5)[1] }}{{ range(5)[-1] }}
{{ range() }}
{{ range(1, 2, 0) }}
{{ range(1000000)|length }}
{{ range('a') }}
{{ range(1.5) }}
{{ dict(a=1, b=2) }}{{ dict([('x', 1)]) }}{{ dict({'y': 1}, z=2) }}{{ dict() }}
{{ dict([1]) }}
{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.reset() }}{{ c.current }}
{{ cycler() }}
{% set j = joiner('; ') %}{{ j() }}a{{ j() }}b{{ j() }}c{% set k = joiner() %}{{ k() }}{{ k() }}
{{ raise_exception('stop') }}
{{ 'a'|nope }}
{{ 'a'|upper|lower|nope }}
{% if false %}{{ 'a'|nope }}{% endif %}{{ 'x'|nope if false else 'y' }}
{{ 'a' is nope }}
{{ 1 is odd is true }}
{{ 'upper' is filter }}{{ 'nope' is filter }}{{ 'odd' is test }}{{ 'nope' is test }}
{{ 1 is not none }}{{ not 1 is none }}{{ 1 is eq 1 and 2 is eq 2 }}{{ [1, 2] is eq [1, 2] }}{{ 3 is divisibleby 3 }}{{ 5 is in [5] }}{{ 4 is divisibleby(3) or true }}
{{ 'a,b'|upper() }}{{ 'abc'|replace('a', 'x')|upper }}{{ ('a' ~ 'b')|upper }}{{ 'a' ~ 'b'|upper }}{{ -5|abs }}{{ 1 + 2|string|length }}
{{ 'x'|default() }}{{ 'abc'.upper().lower()|title }}{{ [1, 2, 3]|map('string')|join }}{{ messages|map(attribute='role')|map('upper')|join(' ') }}
{{ messages|selectattr('role', 'in', ['user', 'tool'])|map(attribute='content')|list }}
{{ messages|selectattr('tool_calls', 'defined')|map(attribute='tool_calls')|first|first }}
{{ messages|map(attribute='tool_calls.0.function.name', default='-')|list }}
{{ messages|groupby('role')|map(attribute=0)|list }}{% for role, group in messages|groupby('role') %}{{ role }}{{ group|length }}{% endfor %}
{{ messages|map('length')|sum }}{{ messages|sum(start=[]) }}
{{ messages|map(attribute='role')|length }}
{{ (messages|map(attribute='role'))[0] }}|{{ messages|map(attribute='role')|first }}|{{ messages|selectattr('x') is defined }}
{% set g = [1, 2]|map('string') %}{{ g|list }}{{ g|list }}{{ 'true' if g else 'false' }}
{{ [1, 'a']|map('abs')|first }}
{{ [1, 'a']|map('abs')|list }}
{{ '%s %d %5.1f %r %%' % ('a', 3, 2.25, 'q') }}{{ '%(a)s-%(b)03d' % {'a': 1, 'b': 2} }}{{ '%s' % 'x' }}{{ '%s' % [1] }}{{ '%*d' % (5, 3) }}{{ '%.*f' % (2, 1.005) }}{{ '%-5d|' % 3 }}{{ '%c%c' % (65, 'b') }}
{{ '%s %s' % 'a' }}
{{ '%s' % ('a', 'b') }}
{{ 'x' % 'a' }}
{{ '%d' % 'a' }}
{{ '%(a)s' % 'x' }}
{{ '%(z)s' % {'a': 1} }}
{{ 'x' % [1] }}{{ 'x' % {} }}{{ '%s' % missing }}{{ 'x' % missing }}{{ '%s' % none }}
{{ '%s and %s'|format('a', 1) }}{{ '%(x)s'|format(x=1) }}{{ '%%'|format }}{{ 5|format }}
{{ '%s'|format(1, x=2) }}
{{ '{} {}'.format(1, 'a') }}{{ '{1}{0}'.format(1, 2) }}{{ '{a}{b[0]}{c.x}'.format(a=1, b=[2], c={'x': 3}) }}{{ '{{}}'.format() }}{{ '{!r:>5}{!s}'.format('a', 'b') }}{{ '{:{w}.{p}f}'.format(3.14159, w=8, p=2) }}{{ '{:>{}}'.format('a', 4) }}
{{ '{}'.format() }}
{{ '{0} {}'.format(1, 2) }}
{{ '{} {0}'.format(1, 2) }}
{{ '{a}'.format(b=1) }}
{{ '{'.format() }}
{{ '}'.format() }}
{{ '{!x}'.format(1) }}
{{ '{:d}'.format('a') }}
{{ '{:5}'.format(none) }}
{{ '{}'.format(none) }}{{ '{}'.format([1]) }}{{ '{}'.format(missing) }}{{ '{0.real}'.format(5) }}{{ '{0[a]}'.format({'a': 1}) }}{{ '{0.nope}'.format(1) }}{{ '{:5}|{:<5}|{:^5}'.format(true, 1, 'a') }}
{{ '{a} {b}'.format(**{'a': 1, 'b': 2}) }}{{ '{}{}'.format(*[1, 2]) }}{{ '{x}'.format_map({'x': 1}) }}
{{ 'abc'.upper(*[]) }}{{ 'a b'.split(**{'maxsplit': 1}) }}
{{ dict(a=1, **{'a': 2}) }}
{{ 'x'.join(missing) }}|{{ '-'.join([]) }}|{{ ', '.join({'a': 1}) }}|{{ ''.join(['a']|map('upper')) }}
{{ 'http://a.com www.b.org, (c.net) x@y.zz mailto:q@w.de d.xx'|urlize }}
{{ 'see https://example.com/a/b?c=d#e. ok'|urlize(15, true, '_blank') }}
{{ 'ftp://a.b x'|urlize(extra_schemes=['ftp:']) }}{{ 'http://a.com'|urlize(rel='me', nofollow=true) }}{{ 'https://localhost:80/ http://1.2.3.4'|urlize }}
{{ 'x'|urlize(extra_schemes=['f']) }}
{{ {'a': 'b c', 'd': 1, 'é': '&'}|urlencode }}{{ 'a/b c?é'|urlencode }}{{ [('a', 1)]|urlencode }}{{ 1|urlencode }}
{{ {'class': 'x', 'n': none, 'u': missing, 'q': '<"'}|xmlattr }}|{{ {'a': 1}|xmlattr(false) }}|{{ {'a': 1}|xmlattr(autospace=false) }}|{{ {}|xmlattr }}
{{ {'a b': 1}|xmlattr }}
{{ {'b': 2, 'A': 1, 'c': 0}|dictsort }}{{ {'b': 2, 'A': 1, 'c': 0}|dictsort(true) }}{{ {'b': 2, 'A': 1, 'c': 0}|dictsort(by='value') }}{{ {'b': 2, 'A': 1}|dictsort(reverse=true) }}{{ {'b': 2, 'A': 1}|dictsort(false, 'value', true) }}
{{ {'a': 1}|dictsort(by='x') }}
{{ 'The quick brown fox jumps over the lazy dog.'|wordwrap(10) }}|{{ 'averyveryverylongword ok'|wordwrap(5) }}|{{ 'a-b-c well-known re-do'|wordwrap(7) }}|{{ 'a -- b--c'|wordwrap(4) }}
{{ 'foo bar baz qux'|truncate(9) }}|{{ 'foo bar baz qux'|truncate(9, true) }}|{{ 'foo bar baz qux'|truncate(11) }}|{{ 'foo bar baz qux'|truncate(11, false, '...', 0) }}|{{ 'joel is a slug'|truncate(7, true) }}
{{ 1000|filesizeformat }}|{{ 1|filesizeformat }}|{{ 999|filesizeformat }}|{{ 1500000|filesizeformat }}|{{ 1024|filesizeformat(true) }}|{{ 10 ** 27|filesizeformat }}|{{ '12'|filesizeformat }}
{{ 42.55|round }}{{ 42.55|round(1) }}{{ 42.55|round(1, 'floor') }}{{ 2.5|round }}{{ 3.5|round }}{{ 1234|round(-2) }}{{ 1250|round(-2) }}{{ -2.5|round }}{{ 2.675|round(2) }}{{ 1e20|round }}{{ 5|round(1, 'ceil') }}
{{ 'abc'|round }}
{{ 'ab'|safe ~ '<' }}{{ '<b>'|safe + '<i>' }}{{ '<b>'|e }}{{ '<b>'|e|e }}{{ '<b>'|e|forceescape }}{{ ['<b>'|safe] }}{{ '<b>'|safe|length }}{{ '%s'|safe % '<' }}{{ '<'|safe is escaped }}
{{ '<p>a  <!-- c --> &amp; b</p> &lt; &eacute; &#65;'|striptags }}
{{ {'aaaaaaaaaaaaaaaaaaaaaaaaaaaa': 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', 'c': ['dddddddddddddddddddddd', 1, {'x': none}], 'b': (1,)}|pprint }}
{{ ['the quick brown fox jumps over the lazy dog and then runs away from all of the others in the forest', 1]|pprint }}
{{ 'the quick brown fox jumps over the lazy dog and then runs away from all of the others in the forest'|pprint }}
{{ strftime_now('%Y-%m-%d %H:%M:%S %j %U %W %a %A %b %B %y %I %p %% %-d %e %w %u %V %G %C %D %F %T %R %h %c %x %X %n %t') }}
{{ strftime_now('%d %B %Y') }}|{{ strftime_now('') }}|{{ strftime_now('%f %Z%z') }}
{{ strftime_now() }}
"""


def _split(text):
    return [line for line in text.strip("\n").split("\n") if line]


MULTILINE = [
    "a  \n  {% if true %}  \n  b\n  {% endif %}\nc\n",
    "{% if true %}\n\nx\n{% endif -%}\n\n y {%- if true %} z {% endif %}",
    " {%+ if true %} a{% endif +%}\nb",
    "  {{ 1 }}  \n  {{- 2 -}}  \n 3\n\n",
    "\t{% set x = 1 %}\t\n{{ x }}\n",
    "  {# c #}\n  {#- c -#}\n x {# c #} y",
    "a\r\nb\rc\r\n",
    "{% raw %}\n a {{ b }}\n{% endraw %}\nc",
    "  {% raw %}  x  {% endraw %}  \n",
    "{%- for x in [1, 2] -%}\n  {{ x }}\n{%- endfor %}\n",
    "{% for x in [1, 2] %}\n  {{ x }}\n  {% endfor %}\nend",
    "{% filter indent(width=2, first=true) %}a\nb\n\nc{% endfilter %}",
    "{{ 'a\nb' }}{{ 'x\\\ny' }}",
    "{% macro m(a) -%}\n  <{{ a }}>\n{%- endmacro -%}\n{{ m('x') }}\n{{ m('y') }}",
    "{% set x -%}\n body \n{%- endset %}[{{ x }}]",
    "{{ {'a':\n 1} }}\n{%\nif true\n%}b{% endif\n%}c",
    "{{ 'é' }}\n{% if true %}{# x #}\n{% endif %}\n\n",
    "x{% generation %}\n y\n{% endgeneration %}\nz",
    "{{ '}}' }}{{ '%}' }}{% if '%}' %}a{% endif %}{ { } } {x} %} }}",
    "",
    "\n",
    "\n\n",
]
CASES = [*_split(_STATEMENTS), *MULTILINE]
