//! Finds the migrations of sqlxmq, which come with its package and are left to its users to run.

use std::error::Error;
use std::process::Command;

use serde_json::Value;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=Cargo.lock");
    let cargo = std::env::var("CARGO")?;
    let output =
        Command::new(cargo).args(["metadata", "--format-version=1", "--locked", "--offline"]).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().ok_or("no packages")?;
    let sqlxmq = packages.iter().find(|package| package["name"] == "sqlxmq").ok_or("no sqlxmq")?;
    let manifest = sqlxmq["manifest_path"].as_str().ok_or("no path of its manifest")?;
    let folder = manifest.strip_suffix("Cargo.toml").ok_or("a manifest of another name")?;
    println!("cargo:rustc-env=SQLXMQ_MIGRATIONS={folder}migrations");
    Ok(())
}
