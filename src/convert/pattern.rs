//! Matches patterns of tensor names, in which `{}` and `{n}` stand for numbers.

/// The numbers in a name that matches a pattern, in order. None if the name does not match.
pub fn numbers(pattern: &str, name: &str) -> Option<Vec<u32>> {
    let (mut parts, mut numbers) = (name.split('.'), Vec::new());
    for wanted in pattern.split('.') {
        let part = parts.next()?;
        if wanted.starts_with('{') {
            // `01` and `+1` would be second names for the tensor of another number.
            numbers.push(part.parse().ok().filter(|number: &u32| number.to_string() == part)?);
        } else if wanted != part {
            return None;
        }
    }
    parts.next().is_none().then_some(numbers)
}

/// Fills the places of a pattern with numbers.
pub fn filled(pattern: &str, numbers: &[u32]) -> String {
    let mut numbers = numbers.iter();
    let part = |part: &str| match part {
        part if part.starts_with('{') => numbers.next().map_or_else(|| part.to_owned(), u32::to_string),
        part => part.to_owned(),
    };
    let parts: Vec<String> = pattern.split('.').map(part).collect();
    parts.join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_patterns_with_their_numbers() {
        assert_eq!(numbers("layers.{}.mlp.experts.{n}.up", "layers.3.mlp.experts.12.up"), Some(vec![3, 12]));
        assert_eq!(numbers("norm", "norm"), Some(vec![]));
        for name in ["layers.x.up", "layers.03.up", "layers.+3.up", "layers.3", "layers.3.up.more", "layers.99999999999.up"] {
            assert_eq!(numbers("layers.{}.up", name), None, "{name}");
        }
        assert_eq!(filled("blk.{}.ffn_up", &[7]), "blk.7.ffn_up");
    }
}
