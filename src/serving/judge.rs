//! Scores pairs of texts with a generative model. The model is asked whether the document answers the query, and the score is how much
//! likelier "yes" is than "no". Qwen3-Reranker was trained on this form.

use std::sync::Arc;

use super::embedding::ValidText;
use super::error::RequestError;
use super::model::Model;
use super::prompt::{encode_rendered, most_counted, rendered};
use super::token_constraint::TokenConstraint;
use chat::{Conversation, Ending, Message, RenderError, Role};
use logits::SamplingParams;
use scheduler::{Items, NewSequence, SequenceGroup};

const TASK: &str = "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer \
                    can only be \"yes\" or \"no\".";
const INSTRUCT: &str = "Given a web search query, retrieve relevant passages that answer the query";

/// The same question twice, once for the log-probability of "yes" and once for that of "no". The prompt is computed once for both.
pub(super) fn questions(model: &Arc<Model>, query: &str, document: &str, cache_salt: u64) -> Result<[ValidText; 2], RequestError> {
    let prompt = Items::text(prompt(model, query, document)?);
    let sequence_group = Some(SequenceGroup::unique());
    let vocab = model.base.spec.vocab_size;
    let [yes, no] = answers(model)?;
    let question = |answer: u32| {
        let sequence = NewSequence {
            cache_salt,
            sequence_group,
            num_logprobs: Some(0),
            grammar: Some(Arc::new(TokenConstraint::new(vocab, Some(&[answer]), Vec::new(), None))),
            ..NewSequence::new(Items::default(), SamplingParams::greedy(), 1)
        };
        ValidText::new(model.clone(), prompt.clone(), sequence)
    };
    Ok([question(yes)?, question(no)?])
}

/// The tokens with which the two answers begin.
fn answers(model: &Model) -> Result<[u32; 2], RequestError> {
    let first = |text: &str| model.base.tokenizer.encode(text, false).first().copied();
    match (first("yes"), first("no")) {
        (Some(yes), Some(no)) if yes != no => Ok([yes, no]),
        _ => Err(RequestError::NoRanking(model.id.clone())),
    }
}

fn prompt(model: &Model, query: &str, document: &str) -> Result<Vec<u32>, RequestError> {
    let user = format!("<Instruct>: {INSTRUCT}\n<Query>: {query}\n<Document>: {document}");
    let messages = vec![Message::of_text(Role::System, TASK), Message::of_text(Role::User, user)];
    // The model must answer at once, without reasoning.
    let mut conversation = Conversation { messages, ending: Ending::OpenTurn, effort: Some("none".into()), ..Conversation::default() };
    let mut prompt = match rendered(model, &conversation) {
        Err(RequestError::Render(RenderError::NoEffort)) => {
            conversation.effort = None;
            rendered(model, &conversation)?
        }
        other => other?,
    };
    let opened = model.dialect.as_ref().filter(|dialect| dialect.opens_reasoning(prompt.end())).and_then(|dialect| dialect.thinking);
    if let (Some(thinking), Some(end)) = (opened, prompt.texts.last_mut()) {
        end.extend([thinking.close, "\n\n"]);
    }
    encode_rendered(model, &prompt, most_counted(model))?.text_only()
}
