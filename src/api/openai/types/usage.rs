//! Token counts.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use serving::Counts;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    pub prompt_tokens: u32,
    pub completion_tokens: u32,
    pub total_tokens: u32,
    pub prompt_tokens_details: PromptTokensDetails,
    pub completion_tokens_details: CompletionTokensDetails,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PromptTokensDetails {
    /// Prompt tokens that were found in the prefix cache.
    pub cached_tokens: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CompletionTokensDetails {
    pub reasoning_tokens: u32,
    /// Tokens of `prediction` that were tried and came as predicted.
    pub accepted_prediction_tokens: u32,
    /// Tokens of `prediction` that were tried and did not come. They do not count as completion tokens.
    pub rejected_prediction_tokens: u32,
}

impl From<Counts> for Usage {
    fn from(counts: Counts) -> Self {
        Self {
            prompt_tokens: counts.prompt,
            completion_tokens: counts.generated,
            total_tokens: counts.prompt + counts.generated,
            prompt_tokens_details: PromptTokensDetails { cached_tokens: counts.cached },
            completion_tokens_details: CompletionTokensDetails {
                reasoning_tokens: counts.reasoning,
                accepted_prediction_tokens: counts.drafts.accepted_predicted,
                rejected_prediction_tokens: counts.drafts.predicted - counts.drafts.accepted_predicted,
            },
        }
    }
}
