use crate::exit::Failure;
pub(crate) fn run(
    _: &crate::cli::PerftestArgs,
    _: Option<&std::path::Path>,
) -> Result<(), Failure> {
    todo!()
}
