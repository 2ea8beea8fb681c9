//! Paths of the server in answers: operators see them whole, other clients only the file's name.

use std::path::Path;

use actix_web::HttpRequest;

use super::state::AppState;
use super::tenant::Tenant;

/// Whether the client of a request may know where the server's files are.
pub fn shows_paths(state: &AppState, request: &HttpRequest) -> bool {
    Tenant::of(request).check_admin(request, state.keys.is_required()).is_ok()
}

/// The path as a client sees it.
pub fn shown_path(path: &Path, whole: bool) -> String {
    let shown = if whole { path } else { path.file_name().map_or(path, Path::new) };
    shown.display().to_string()
}
