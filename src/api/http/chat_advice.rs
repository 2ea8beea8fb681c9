//! Advice for conversations that are sent to a model that does not chat.

use actix_web::web;

use super::error::ApiError;
use super::state::{AppState, off_loop};
use super::subject::FieldNames;
use super::tenant::Tenant;
use registry::ModelKind;
use serving::RequestError;

/// The most models that an error names.
const MOST: usize = 5;

/// Converts the error of an invalid request. If the model does not chat, the error names models that the key may use and that do.
pub async fn refusal(state: &web::Data<AppState>, tenant: &Tenant, names: &FieldNames, error: &RequestError) -> ApiError {
    let told = names.request_error(error);
    if !matches!(error, RequestError::NoTemplate(_)) {
        return told;
    }
    let (registry, tenant) = (state.registry.clone(), tenant.clone());
    let chatting = off_loop(move || {
        let chats = registry.offered().into_iter().filter(|offered| offered.kind == Some(ModelKind::Chat)).map(|offered| offered.info.id);
        chats.filter(|id| tenant.may_use(&registry, id)).take(MOST).collect::<Vec<_>>()
    });
    let advice = advice(&chatting.await.unwrap_or_default());
    ApiError { message: format!("{}: {advice}", told.message), ..told }
}

fn advice(chatting: &[String]) -> String {
    const CONTINUES: &str = "/v1/completions continues a text";
    match chatting {
        [] => format!("no model on this server's disk chats; {CONTINUES}"),
        some => format!("these do: {}; {CONTINUES}", some.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::advice;

    #[test]
    fn the_advice_names_models_that_chat() {
        assert_eq!(advice(&["a".into(), "b".into()]), "these do: a, b; /v1/completions continues a text");
        assert!(advice(&[]).starts_with("no model on"));
    }
}
