//! Decodes the escapes in string literals like Python's codec `unicode-escape`.

/// Decodes a literal without its quotes. The error says what is wrong.
pub(super) fn unescape(text: &str) -> Result<String, String> {
    if !text.contains('\\') {
        return Ok(text.to_owned());
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let Some(c) = rest.chars().next() else { return Err("a string ends with a backslash".into()) };
        rest = &rest[c.len_utf8()..];
        let simple = match c {
            '\n' => None,
            '\\' | '\'' | '"' => Some(c),
            'a' => Some('\x07'),
            'b' => Some('\x08'),
            'f' => Some('\x0c'),
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'v' => Some('\x0b'),
            '0'..='7' => {
                let more = rest.bytes().take(2).take_while(|byte| (b'0'..=b'7').contains(byte)).count();
                let code = u32::from_str_radix(&format!("{c}{}", &rest[..more]), 8).unwrap_or_default();
                rest = &rest[more..];
                char::from_u32(code)
            }
            'x' => Some(coded(&mut rest, 'x', 2)?),
            'u' => Some(coded(&mut rest, 'u', 4)?),
            'U' => Some(coded(&mut rest, 'U', 8)?),
            'N' => return Err("`\\N{…}` in a string is not supported: write the character itself or its `\\u` code".into()),
            // Jinja first encodes non-ASCII characters as escapes, so here the backslash precedes such an escape.
            c if !c.is_ascii() => {
                out.push_str(&coded_form(c));
                None
            }
            c => {
                out.push('\\');
                Some(c)
            }
        };
        out.extend(simple);
    }
    out.push_str(rest);
    Ok(out)
}

fn coded(rest: &mut &str, letter: char, digits: usize) -> Result<char, String> {
    let short = || format!("`\\{letter}` in a string needs {digits} hexadecimal digits");
    let text = rest.get(..digits).filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit())).ok_or_else(short)?;
    *rest = &rest[digits..];
    let code = u32::from_str_radix(text, 16).map_err(|_| short())?;
    char::from_u32(code).ok_or_else(|| format!("`\\{letter}{text}` in a string is not a character"))
}

fn coded_form(c: char) -> String {
    match c as u32 {
        code @ ..0x100 => format!("\\x{code:02x}"),
        code @ ..0x1_0000 => format!("\\u{code:04x}"),
        code => format!("\\U{code:08x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_those_of_python() {
        for (text, want) in
            [(r"a\n\t\\\'", "a\n\t\\'"), (r"\x41\u00e9\U0001f9e9\101\0", "Aé\u{1f9e9}A\0"), (r"\d\é", "\\d\\xe9"), ("a\\\nb", "ab")]
        {
            assert_eq!(unescape(text).unwrap(), want, "{text}");
        }
        for bad in [r"\x4", r"\u12", r"\ud800", r"\N{DASH}", "\\"] {
            unescape(bad).unwrap_err();
        }
    }
}
