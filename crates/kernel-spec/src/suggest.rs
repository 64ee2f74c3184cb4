//! "Did you mean": the known word nearest to a mistyped one.

/// The candidate that is most like `word`, if any is near enough to be what was meant.
pub(crate) fn nearest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    // Below 0.75 the Jaro-Winkler measure starts to pair unrelated short words.
    const NEAR_ENOUGH: f64 = 0.75;
    candidates
        .into_iter()
        .map(|candidate| {
            (
                strsim::jaro_winkler(&word.to_lowercase(), &candidate.to_lowercase()),
                candidate,
            )
        })
        .filter(|(likeness, _)| *likeness >= NEAR_ENOUGH)
        .max_by(|(left, _), (right, _)| left.total_cmp(right))
        .map(|(_, candidate)| candidate)
}

/// A hint for an unknown word: the nearest known one, or all of them.
pub(crate) fn hint(word: &str, known: &[&str]) -> String {
    match nearest(word, known.iter().copied()) {
        Some(candidate) => format!("did you mean `{candidate}`?"),
        None => format!("known: {}", known.join(", ")),
    }
}
