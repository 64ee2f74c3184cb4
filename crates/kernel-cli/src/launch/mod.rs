//! Several processes for one model: started, watched and ended as one.
//!
//! torchrun starts the ranks; each is this program with the same arguments. A rank that finds
//! [`link::VARIABLE`] sends what it has to say through a socket instead of printing it, so that there is
//! one report, one stream of text and one error, whichever rank it comes from. Under a torchrun of the
//! user's own there is no socket, and the first rank prints as a single process does.
//!
//! | module | owns |
//! | --- | --- |
//! | `environment` | the variables and the command that ranks are started with |
//! | `link` | the socket, as a rank uses it |
//! | `supervisor` | starting the ranks, hearing them, ending them |
//! | `watch` | which rank failed, or does not answer: rules on what was heard |

pub(crate) mod environment;
pub(crate) mod link;
mod supervisor;
mod watch;

pub(crate) use supervisor::{Launch, run};

use crate::failure::Failure;

/// This process's place among ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// From 0.
    pub(crate) rank: usize,
    /// Number of ranks.
    pub(crate) ranks: usize,
}

impl Place {
    /// The place that torchrun's variables describe; none where they are not all set.
    pub(crate) fn of_process() -> Result<Option<Self>, Failure> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(read: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, Failure> {
        let [Some(rank), Some(ranks), Some(_), Some(_)] =
            ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"].map(read)
        else {
            return Ok(None);
        };
        match (rank.parse(), ranks.parse()) {
            (Ok(rank), Ok(ranks)) if rank < ranks => Ok(Some(Self { rank, ranks })),
            _ => Err(Failure::usage(format!(
                "the variables RANK=`{rank}` and WORLD_SIZE=`{ranks}` are no place among ranks"
            ))
            .with_hint("start it with torchrun, or unset them and use `--tp N`")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(variables: &[(&str, &str)]) -> Result<Option<Place>, Failure> {
        Place::from_variables(|name| {
            let found = variables.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn a_place_needs_all_of_the_launchers_variables() {
        let all = [
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "localhost"),
            ("MASTER_PORT", "29500"),
        ];
        assert_eq!(place(&all).unwrap(), Some(Place { rank: 1, ranks: 2 }));
        // A batch system that sets one of them is no launcher.
        assert_eq!(place(&all[..2]).unwrap(), None);
    }

    #[test]
    fn a_place_outside_its_group_is_refused() {
        let variables = [
            ("RANK", "2"),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "h"),
            ("MASTER_PORT", "1"),
        ];
        let failure = place(&variables).unwrap_err();
        assert!(failure.message.contains("RANK=`2`"), "{}", failure.message);
    }
}
