//! `folio-bindgen INPUT.wasm FOLDER NAME`: writes `NAME.js`, `NAME.d.ts` and `NAME_bg.wasm`.

use std::env::args;
use wasm_bindgen_cli_support::Bindgen;

fn main() {
    let args: Vec<_> = args().skip(1).collect();
    let [input, folder, name] = args.as_slice() else {
        eprintln!("usage: folio-bindgen INPUT.wasm FOLDER NAME");
        std::process::exit(2);
    };
    let written = Bindgen::new()
        .input_path(input)
        .out_name(name)
        .typescript(true)
        .omit_default_module_path(true)
        // For a new instance after a crash, without a second copy of the script.
        .reset_state_function(true)
        .remove_name_section(true)
        .remove_producers_section(true)
        .web(true)
        .and_then(|bindgen| bindgen.generate(folder));
    if let Err(error) = written {
        eprintln!("{error:?}");
        std::process::exit(1);
    }
}
