//! Finds the name that was probably meant.

/// The least similarity of two names at which one is suggested for the other. 1 is equal.
const ALIKE: f64 = 0.87;
/// The longest name that is compared.
const MAX_COMPARED: usize = 100;

/// The id whose name is most similar to an unknown one. `names`: pairs of (id, name).
pub fn nearest_model<'a>(names: impl Iterator<Item = (&'a str, &'a str)>, unknown: &str) -> Option<&'a str> {
    if unknown.len() > MAX_COMPARED {
        return None;
    }
    let unknown = unknown.to_ascii_lowercase();
    let alike = |name: &str| strsim::jaro_winkler(&name.to_ascii_lowercase(), &unknown);
    let scored = names.map(|(id, name)| (alike(name), id)).filter(|(score, _)| *score >= ALIKE);
    // the first of several that are equally similar
    scored.fold(None, |best: Option<(f64, &str)>, next| Some(best.filter(|best| best.0 >= next.0).unwrap_or(next))).map(|(_, id)| id)
}
