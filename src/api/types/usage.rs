//! Token counts.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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
    /// Prompt tokens whose keys and values were found in the prefix cache.
    pub cached_tokens: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CompletionTokensDetails {
    pub reasoning_tokens: u32,
}

impl Usage {
    pub fn new(prompt_tokens: u32, cached_tokens: u32, completion_tokens: u32) -> Self {
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens },
            completion_tokens_details: CompletionTokensDetails { reasoning_tokens: 0 },
        }
    }

    /// Of the generated tokens, those spent on reasoning.
    pub fn with_reasoning(mut self, reasoning_tokens: u32) -> Self {
        self.completion_tokens_details.reasoning_tokens = reasoning_tokens;
        self
    }

    /// The sum over several choices.
    pub fn plus(self, other: Self) -> Self {
        Self::new(
            self.prompt_tokens + other.prompt_tokens,
            self.prompt_tokens_details.cached_tokens + other.prompt_tokens_details.cached_tokens,
            self.completion_tokens + other.completion_tokens,
        )
        .with_reasoning(self.completion_tokens_details.reasoning_tokens + other.completion_tokens_details.reasoning_tokens)
    }
}
