//! Stop strings in streamed text.

/// Text on its way to the caller, from which nothing goes out that may be part of a stop string.
#[derive(Debug)]
pub(super) struct StopFilter<'a> {
    stops: &'a [String],
    held: String,
}

/// What [`StopFilter::push`] lets out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Released {
    /// Text before any stop string.
    pub(super) text: String,
    /// Whether a stop string was found; it and what follows are dropped.
    pub(super) stopped: bool,
}

impl<'a> StopFilter<'a> {
    pub(super) fn new(stops: &'a [String]) -> Self {
        Self {
            stops,
            held: String::new(),
        }
    }

    /// Adds text and lets out what cannot be the start of a stop string.
    pub(super) fn push(&mut self, text: &str) -> Released {
        self.held.push_str(text);
        let found = self
            .stops
            .iter()
            .filter(|s| !s.is_empty())
            .filter_map(|s| self.held.find(s));
        if let Some(at) = found.min() {
            self.held.truncate(at);
            return Released {
                text: std::mem::take(&mut self.held),
                stopped: true,
            };
        }
        let keep = self.possible_start();
        let rest = self.held.split_off(self.held.len() - keep);
        Released {
            text: std::mem::replace(&mut self.held, rest),
            stopped: false,
        }
    }

    /// Lets out what was held back at the end of a row.
    pub(super) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Bytes at the end of the held text that a stop string begins with.
    fn possible_start(&self) -> usize {
        let longest = |stop: &String| {
            let starts = stop
                .char_indices()
                .map(|(index, _)| index)
                .filter(|index| *index > 0);
            starts
                .filter(|length| self.held.ends_with(&stop[..*length]))
                .max()
        };
        self.stops.iter().filter_map(longest).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, bool) {
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut filter = StopFilter::new(&stops);
        let mut out = Vec::new();
        for piece in pieces {
            let released = filter.push(piece);
            out.push(released.text);
            if released.stopped {
                return (out, true);
            }
        }
        out.push(filter.finish());
        (out, false)
    }

    #[test]
    fn a_stop_string_spread_over_pieces_is_found_and_not_shown() {
        let (out, stopped) = run(&["\n\nUser:"], &["hi\n", "\nUs", "er: x"]);
        assert!(stopped);
        assert_eq!(out.concat(), "hi");
    }

    #[test]
    fn text_that_only_looks_like_a_stop_string_comes_out() {
        let (out, stopped) = run(&["END"], &["an E", "N", "T"]);
        assert!(!stopped);
        assert_eq!(out, ["an ", "", "ENT", ""]);
        let (out, _) = run(&["END"], &["EN"]);
        assert_eq!(out, ["", "EN"]);
    }

    #[test]
    fn the_earliest_of_several_wins_and_empty_ones_do_nothing() {
        let (out, stopped) = run(&["b", "a", ""], &["xxab"]);
        assert!(stopped);
        assert_eq!(out, ["xx"]);
    }

    #[test]
    fn characters_of_several_bytes_are_not_split() {
        let (out, stopped) = run(&["é€"], &["aé", "x"]);
        assert!(!stopped);
        assert_eq!(out, ["a", "éx", ""]);
    }
}
