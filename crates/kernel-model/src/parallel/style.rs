//! The styles of a tensor-parallel plan, as transformers 5 names them.

/// How one module is spread over the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Style {
    /// Rows of the weight, [out, in]; each rank has a slice of the output.
    Colwise,
    /// As `Colwise`, with the output gathered.
    ColwiseGatherOutput,
    /// Columns of the weight; takes a slice of the input, and outputs are summed.
    Rowwise,
    /// As `Rowwise`, taking the whole input.
    RowwiseSplitInput,
    /// Rows of an embedding; outputs are summed.
    EmbeddingRowwise,
    /// Columns of an embedding, with the output gathered.
    EmbeddingColwise,
    /// Rows of a projection that fuses two, the same slice of both.
    PackedColwise,
    /// Columns of a projection that fuses two.
    PackedRowwise,
    /// The whole module on each rank.
    Replicate,
    /// The same in inference; in training its gradients are summed.
    ReplicatedWithGradAllreduce,
}

/// Styles by the names of transformers, the older names of two of them included.
const NAMES: [(&str, Style); 12] = [
    ("colwise", Style::Colwise),
    ("colwise_gather_output", Style::ColwiseGatherOutput),
    ("colwise_rep", Style::ColwiseGatherOutput),
    ("rowwise", Style::Rowwise),
    ("rowwise_split_input", Style::RowwiseSplitInput),
    ("rowwise_rep", Style::RowwiseSplitInput),
    ("embedding_rowwise", Style::EmbeddingRowwise),
    ("embedding_colwise", Style::EmbeddingColwise),
    ("packed_colwise", Style::PackedColwise),
    ("packed_rowwise", Style::PackedRowwise),
    ("replicate", Style::Replicate),
    (
        "replicated_with_grad_allreduce",
        Style::ReplicatedWithGradAllreduce,
    ),
];

/// Styles that transformers has and these models have no module for, with the reason.
const FOREIGN: [(&str, &str); 8] = [
    (
        "all_reduce",
        "is for modules that leave partial sums behind, which none of this model does",
    ),
    (
        "sequence_parallel",
        "splits a sequence, which a decode step of one token does not have",
    ),
    ("mla_kv_a_proj", "is for multi-head latent attention"),
    ("moe_tp_experts", "is for mixtures of experts"),
    ("moe_identity_expert", "is for mixtures of experts"),
    ("ep_dispatch_experts", "is for mixtures of experts"),
    ("grouped_gemm", "is for mixtures of experts"),
    ("local_params", "is for mixtures of experts"),
];

/// Styles that transformers has given up, with what took their place.
const GONE: [(&str, &str); 5] = [
    ("local", "replicate"),
    ("local_colwise", "colwise"),
    ("local_rowwise", "rowwise"),
    ("gather", "colwise_gather_output"),
    ("ep_router", "replicate"),
];

impl Style {
    /// The style of a name.
    ///
    /// # Errors
    /// What is wrong with the name, to follow on "style `NAME` ".
    pub fn by_name(name: &str) -> Result<Self, String> {
        if let Some((_, style)) = NAMES.iter().find(|(known, _)| *known == name) {
            return Ok(*style);
        }
        if let Some((_, reason)) = FOREIGN.iter().find(|(known, _)| *known == name) {
            return Err((*reason).to_owned());
        }
        if let Some((_, instead)) = GONE.iter().find(|(known, _)| *known == name) {
            return Err(format!("was given up by transformers; use `{instead}`"));
        }
        let known: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
        Err(format!("is not known; these are: {}", known.join(", ")))
    }

    /// The name in plans.
    pub fn name(self) -> &'static str {
        match self {
            Self::Colwise => "colwise",
            Self::ColwiseGatherOutput => "colwise_gather_output",
            Self::Rowwise => "rowwise",
            Self::RowwiseSplitInput => "rowwise_split_input",
            Self::EmbeddingRowwise => "embedding_rowwise",
            Self::EmbeddingColwise => "embedding_colwise",
            Self::PackedColwise => "packed_colwise",
            Self::PackedRowwise => "packed_rowwise",
            Self::Replicate => "replicate",
            Self::ReplicatedWithGradAllreduce => "replicated_with_grad_allreduce",
        }
    }

    /// Whether each rank holds the whole module.
    pub fn is_replicated(self) -> bool {
        matches!(self, Self::Replicate | Self::ReplicatedWithGradAllreduce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_older_names_mean_the_newer_ones() {
        for (name, style) in NAMES {
            assert_eq!(Style::by_name(name), Ok(style));
            assert_eq!(Style::by_name(style.name()), Ok(style));
        }
        assert_eq!(Style::by_name("rowwise_rep"), Ok(Style::RowwiseSplitInput));
    }

    #[test]
    fn styles_that_cannot_run_say_why() {
        let problem = |name| Style::by_name(name).unwrap_err();
        assert!(problem("sequence_parallel").contains("one token"));
        assert!(problem("moe_tp_experts").contains("experts"));
        assert!(problem("local_colwise").contains("use `colwise`"));
        assert!(problem("columnwise").contains("colwise_gather_output"));
    }
}
