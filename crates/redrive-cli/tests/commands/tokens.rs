//! `redrive tokens …` through a server, and tokens of other commands.

use super::world::{World, until};

#[test]
fn a_server_requires_tokens_once_it_has_created_one() {
    let world = World::through_server();
    assert!(world.text(&["tokens", "list"]).contains("No tokens"));
    let first = ["tokens", "create", "--name", "admin", "--scope", "admin"];
    let said = world.refused(1, &first);
    assert!(said.contains("the first token is created on the command line"), "{said}");
    let created = world.command(&first).output().unwrap(); // on the file
    let admin = String::from_utf8(created.stdout).unwrap().trim().to_owned();
    assert!(admin.starts_with("rdt_"), "{admin}");
    let list = ["tokens", "list", "--token", &admin];
    until("the server knows the token", || world.run(&list).status.success().then_some(()));
    let said = world.refused(1, &["tokens", "list"]);
    assert!(said.contains("--token") && said.contains("REDRIVE_TOKEN"), "{said}");
    let read = world.json(&[
        "tokens",
        "create",
        "--name",
        "look",
        "--scope",
        "read",
        "--expires-in",
        "1d",
        "--token",
        &admin,
    ]);
    let listed = world.json(&["tokens", "list", "--token", &admin]);
    assert_eq!(listed["data"].as_array().unwrap().len(), 2, "{listed}");
    assert!(listed["data"][1]["expires_at"].is_string() && !listed.to_string().contains("rdt_"), "{listed}");
    let holder = read["token"].as_str().unwrap();
    assert!(world.text(&["endpoints", "list", "--token", holder]).contains("No endpoints"));
    let said = world.refused(1, &["tokens", "list", "--token", holder]);
    assert!(said.contains("needs the scope admin") && !said.contains(holder), "{said}");
    let id = read["id"].as_str().unwrap();
    assert!(world.text(&["tokens", "revoke", id, "--token", &admin]).contains("is revoked"));
    assert!(world.refused(1, &["tokens", "revoke", id, "--token", &admin]).contains("there is no token"));
    assert!(world.refused(1, &["endpoints", "list", "--token", holder]).contains("token"));
}
