//! Resolves HTML's character references: `&eacute;`, `&#233;`, `&#xe9;`.

/// The names of HTML 4, in runs of successive codes. `-` is a code without a name.
const NAMED: [(u32, &str); 39] = [
    (0x22, "quot - - - amp"),
    (0x3c, "lt - gt"),
    (
        0xa0,
        "nbsp iexcl cent pound curren yen brvbar sect uml copy ordf laquo not shy reg macr deg plusmn sup2 sup3 acute micro \
     para middot cedil sup1 ordm raquo frac14 frac12 frac34 iquest Agrave Aacute Acirc Atilde Auml Aring AElig Ccedil Egrave \
     Eacute Ecirc Euml Igrave Iacute Icirc Iuml ETH Ntilde Ograve Oacute Ocirc Otilde Ouml times Oslash Ugrave Uacute Ucirc Uuml \
     Yacute THORN szlig agrave aacute acirc atilde auml aring aelig ccedil egrave eacute ecirc euml igrave iacute icirc iuml eth \
     ntilde ograve oacute ocirc otilde ouml divide oslash ugrave uacute ucirc uuml yacute thorn yuml",
    ),
    (0x152, "OElig oelig"),
    (0x160, "Scaron scaron"),
    (0x178, "Yuml"),
    (0x192, "fnof"),
    (0x2c6, "circ"),
    (0x2dc, "tilde"),
    (
        0x391,
        "Alpha Beta Gamma Delta Epsilon Zeta Eta Theta Iota Kappa Lambda Mu Nu Xi Omicron Pi Rho - Sigma Tau Upsilon Phi Chi \
     Psi Omega",
    ),
    (
        0x3b1,
        "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigmaf sigma tau upsilon phi \
     chi psi omega",
    ),
    (0x3d1, "thetasym upsih - - - piv"),
    (0x2002, "ensp emsp"),
    (
        0x2009,
        "thinsp - - zwnj zwj lrm rlm - - - ndash mdash - - - lsquo rsquo sbquo - ldquo rdquo bdquo - dagger Dagger bull - - - \
     hellip",
    ),
    (0x2030, "permil - prime Prime"),
    (0x2039, "lsaquo rsaquo - - - oline"),
    (0x2044, "frasl"),
    (0x20ac, "euro"),
    (0x2111, "image"),
    (0x2118, "weierp - - - real"),
    (0x2122, "trade"),
    (0x2135, "alefsym"),
    (0x2190, "larr uarr rarr darr harr"),
    (0x21b5, "crarr"),
    (0x21d0, "lArr uArr rArr dArr hArr"),
    (
        0x2200,
        "forall - part exist - empty - nabla isin notin - ni - - - prod - sum minus - - - - lowast - - radic - - prop infin - \
     ang",
    ),
    (0x2227, "and or cap cup int"),
    (0x2234, "there4"),
    (0x223c, "sim"),
    (0x2245, "cong - - asymp"),
    (0x2260, "ne equiv - - le ge"),
    (0x2282, "sub sup nsub - sube supe"),
    (0x2295, "oplus - otimes"),
    (0x22a5, "perp"),
    (0x22c5, "sdot"),
    (0x2308, "lceil rceil lfloor rfloor"),
    (0x2329, "lang rang"),
    (0x25ca, "loz"),
    (0x2660, "spades - - clubs - hearts diams"),
];
/// Further names of HTML 5 for ASCII and for two signs.
const MORE: [(&str, char); 7] = [("apos", '\''), ("AMP", '&'), ("LT", '<'), ("GT", '>'), ("QUOT", '"'), ("COPY", '©'), ("REG", '®')];
/// The characters that the codes 0x80 to 0x9f represent in Windows-1252.
const WINDOWS: &str = "€\u{81}‚ƒ„…†‡ˆ‰Š‹Œ\u{8d}Ž\u{8f}\u{90}‘’“”•–—˜™š›œ\u{9d}žŸ";
/// The longest name [characters]. A name is only searched for within this distance of an ampersand.
const MAX_NAME: usize = 32;

/// Resolves the references in `text` as Python's `html.unescape` does.
pub(super) fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        match if rest.starts_with('#') { numbered(rest) } else { by_name(rest) } {
            Some((found, length)) => {
                out.extend(found);
                rest = &rest[length..];
            }
            None => out.push('&'),
        }
    }
    out.push_str(rest);
    out
}

/// The character of `#233;` or `#xe9;` at the start of `rest`, if the code is valid, and the length of the reference.
fn numbered(rest: &str) -> Option<(Option<char>, usize)> {
    let (start, radix) = if rest[1..].starts_with(['x', 'X']) { (2, 16) } else { (1, 10) };
    let length = rest[start..].bytes().take_while(|byte| char::from(*byte).is_digit(radix)).count();
    if length == 0 {
        return None;
    }
    let end = start + length;
    let code = rest[start..end].bytes().try_fold(0_u32, |code, byte| {
        code.checked_mul(radix)?.checked_add(char::from(byte).to_digit(radix)?).filter(|code| *code <= 0x10_ffff)
    });
    Some((character(code), end + usize::from(rest[end..].starts_with(';'))))
}

/// The character of a code. The argument `None` means that the code is too large.
fn character(code: Option<u32>) -> Option<char> {
    match code {
        None | Some(0 | 0xd800..=0xdfff) => Some('\u{fffd}'),
        Some(code @ 0x80..=0x9f) => WINDOWS.chars().nth(code as usize - 0x80),
        Some(0x1..=0x8 | 0xb | 0xe..=0x1f | 0x7f | 0xfdd0..=0xfdef) => None,
        Some(code) if code & 0xfffe == 0xfffe => None,
        Some(code) => char::from_u32(code),
    }
}

/// The character of `eacute;` at the start of `rest`, and the length of the reference. Old names need no semicolon.
fn by_name(rest: &str) -> Option<(Option<char>, usize)> {
    let end = rest.bytes().take(MAX_NAME).take_while(u8::is_ascii_alphanumeric).count();
    if rest[end..].starts_with(';')
        && let Some((found, _)) = named(&rest[..end])
    {
        return Some((Some(found), end + 1));
    }
    let old = (2..=end).rev().find_map(|end| named(&rest[..end]).filter(|(_, is_old)| *is_old).map(|(found, _)| (found, end)));
    old.map(|(found, end)| (Some(found), end))
}

/// The character of a name, and whether the name needs no semicolon.
fn named(name: &str) -> Option<(char, bool)> {
    if let Some((_, found)) = MORE.iter().find(|(known, _)| *known == name) {
        return Some((*found, *found != '\''));
    }
    NAMED.iter().find_map(|(first, names)| {
        let at = names.split(' ').position(|known| known == name && known != "-")?;
        let code = first + at as u32;
        Some((char::from_u32(code)?, code < 0x100))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_become_their_characters() {
        let cases = [
            ("&eacute;&Yuml;&amp;&hearts;&zwj;", "éŸ&\u{2665}\u{200d}"),
            ("&copy &ltb &notin; &noti; &eacutex", "© <b \u{2209} ¬i; éx"),
            ("&#233;&#xE9;&#233 &#128;&#0;&#xd800;&#99999999999;&#1;", "ééé €\u{fffd}\u{fffd}\u{fffd}"),
            ("& && &; &# &#x; &unknown; &hearts", "& && &; &# &#x; &unknown; &hearts"),
        ];
        for (text, want) in cases {
            assert_eq!(unescape(text), want, "{text}");
        }
        let long = "&".repeat(1 << 20);
        assert_eq!(unescape(&long), long);
    }
}
