//! The kind of a call: all that decides which compiled function it needs, as a list of numbers.

use crate::call::Arg;
use crate::tensor::View;

/// What a call is looked up by.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Kind(Vec<i64>);

/// A call's kind, and the tensors among its values.
pub(super) struct Described<'a> {
    pub(super) kind: Kind,
    /// For each value of the call, its memory where it is a tensor.
    pub(super) views: Vec<Option<View<'a>>>,
}

impl<'a> Described<'a> {
    /// Describes a call that goes a path of this number. None where a value is a tensor that only
    /// the Python op can take.
    pub(super) fn of(
        path: i64,
        arguments: &'a [Arg<'_>],
        keywords: &'a [(&str, Arg<'_>)],
    ) -> Option<Self> {
        let mut kind = Kind(Vec::with_capacity(48));
        kind.0.push(path);
        for (name, _) in keywords {
            kind.push_text(name);
        }
        let mut views = Vec::with_capacity(arguments.len() + keywords.len());
        for value in arguments
            .iter()
            .chain(keywords.iter().map(|(_, value)| value))
        {
            if let Arg::Tensor(tensor) = value {
                let view = View::of(tensor)?;
                if view.shape.contains(&0) {
                    return None;
                }
                kind.push_tensor(&view);
                views.push(Some(view));
            } else {
                kind.push_plain(value);
                views.push(None);
            }
        }
        Some(Self { kind, views })
    }
}

impl Kind {
    fn push_tensor(&mut self, view: &View<'_>) {
        self.0.push(i64::from(view.element.torch()));
        self.0.push(view.shape.len() as i64);
        self.0.extend_from_slice(view.shape);
    }

    /// Plain values begin with a number below zero, which no type of a tensor has.
    fn push_plain(&mut self, value: &Arg<'_>) {
        match value {
            Arg::Float(value) => self.0.extend([-1, value.to_bits() as i64]),
            Arg::Int(value) => self.0.extend([-2, *value]),
            Arg::Bool(value) => self.0.extend([-3, i64::from(*value)]),
            Arg::Text(text) => {
                self.0.push(-4);
                self.push_text(text);
            }
            Arg::None | Arg::Tensor(_) => self.0.push(-5),
        }
    }

    fn push_text(&mut self, text: &str) {
        self.0.push(text.len() as i64);
        self.0.extend(text.as_bytes().chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            i64::from_le_bytes(word)
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(arguments: &[Arg<'_>], keywords: &[(&str, Arg<'_>)]) -> Kind {
        Described::of(0, arguments, keywords).unwrap().kind
    }

    #[test]
    fn calls_that_differ_in_a_value_a_type_or_a_name_are_of_different_kinds() {
        let calls = [
            kind(&[Arg::Int(1)], &[]),
            kind(&[Arg::Bool(true)], &[]),
            kind(&[Arg::Float(1.0)], &[]),
            kind(&[Arg::Float(-0.0)], &[]),
            kind(&[Arg::Float(0.0)], &[]),
            kind(&[Arg::Text("a")], &[]),
            kind(&[Arg::Text("a\0")], &[]),
            kind(&[Arg::Text("a longer text")], &[]),
            kind(&[Arg::None], &[]),
            kind(&[Arg::None, Arg::None], &[]),
            kind(&[], &[("a", Arg::None)]),
            kind(&[], &[("b", Arg::None)]),
        ];
        for (index, one) in calls.iter().enumerate() {
            for other in &calls[index + 1..] {
                assert_ne!(one, other);
            }
        }
        assert_eq!(
            kind(&[Arg::Text("a longer text")], &[("x", Arg::Int(3))]),
            kind(&[Arg::Text("a longer text")], &[("x", Arg::Int(3))])
        );
    }
}
