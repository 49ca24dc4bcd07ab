use super::*;

fn args(settings: &[&str]) -> VllmArgs {
    VllmArgs {
        socket: Some("/run/k.sock".into()),
        role: Role::Both,
        settings: settings.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn the_document_is_what_vllm_expects() {
    let document = document(&args(&["store=prompt", "kvasir.heartbeat_interval=5"])).unwrap();
    let expected = json!({
        "kv_connector": "KvasirConnector",
        "kv_connector_module_path": "kvasir.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "kvasir.socket": "/run/k.sock",
            "kvasir.store": "prompt",
            "kvasir.heartbeat_interval": 5,
        },
    });
    assert_eq!(document, expected);
}

#[test]
fn sockets_are_absolute_and_may_be_several() {
    let sockets = |setting: &str| {
        document(&args(&[setting])).map(|it| it["kv_connector_extra_config"]["kvasir.socket"].clone())
    };
    let here = std::path::absolute("k.sock").unwrap();
    assert_eq!(sockets("socket=k.sock").unwrap(), json!(here));
    assert_eq!(
        sockets(r#"socket=["/run/a", "k.sock"]"#).unwrap(),
        json!(["/run/a", here])
    );
    assert!(sockets(r#"socket=["/run/a", ""]"#).is_err());
    assert!(sockets("socket=").is_err());
}

#[test]
fn every_role_is_one_that_the_connector_knows() {
    let source = include_str!("../../../python/kvasir/vllm/settings.py");
    let (_, roles) = source.split_once("\n_ROLES = {").unwrap();
    let (roles, _) = roles.split_once("}\n").unwrap();
    for role in Role::value_variants() {
        let args = VllmArgs {
            role: *role,
            ..args(&[])
        };
        let name = document(&args).unwrap()["kv_role"].as_str().unwrap().to_owned();
        assert_eq!(role.to_possible_value().unwrap().get_name(), name);
        assert!(roles.contains(&format!("\"{name}\":")), "{name}");
    }
    assert_eq!(roles.matches("\": (").count(), Role::value_variants().len());
}

#[test]
fn a_setting_without_a_value_is_refused() {
    assert!(document(&args(&["store"])).unwrap_err().contains("KEY=VALUE"));
    assert!(document(&args(&["=1"])).is_err());
}

#[test]
fn text_stays_text_and_numbers_are_numbers() {
    let settings = [
        "weights_id=20241105",
        "deadline=0.5",
        "credit_bytes=1MiB",
        "checksums=false",
        "copy_threads=auto",
        "payload_path=ring",
        "kvasir.store=all",
    ];
    let document = document(&args(&settings)).unwrap();
    assert_eq!(
        document["kv_connector_extra_config"],
        json!({
            "kvasir.socket": "/run/k.sock",
            "kvasir.weights_id": "20241105",
            "kvasir.deadline": 0.5,
            "kvasir.credit_bytes": 1_048_576,
            "kvasir.checksums": false,
            "kvasir.copy_threads": "auto",
            "kvasir.payload_path": "ring",
            "kvasir.store": "all",
        })
    );
    for truth in ["true", "null", "1e3", "\"x\"", "a=b"] {
        let document = super::document(&args(&[&format!("weights_id={truth}")])).unwrap();
        assert_eq!(document["kv_connector_extra_config"]["kvasir.weights_id"], truth);
    }
}

#[test]
fn what_the_connector_would_refuse_is_refused() {
    for setting in [
        "weight_id=x",
        "kvasir.kvasir.store=all",
        "weights_id=",
        "socket=",
        "store=none",
        "store=1",
        "deadline=0",
        "deadline=-1",
        "deadline=inf",
        "deadline=NaN",
        "deadline=1e999",
        "deadline=true",
        "lookup_wait=",
        "heartbeat_interval=10s",
        "preferred_base=0",
        "preferred_base=256.0",
        "preferred_base=-1",
        "checksums=off",
        "copy_threads=0",
        "copy_threads=17",
        "copy_threads=all",
        "payload_path=shm",
        "payload_path=",
        "credit_bytes=64X",
        "credit_bytes=0MiB",
        "describe_file=",
        "credit_bytes=99999999999999999999",
    ] {
        let error = document(&args(&[setting])).unwrap_err();
        assert!(error.contains(setting), "{error}");
    }
}

#[test]
fn sizes_in_a_configuration_may_be_text() {
    for (value, holds) in [
        (json!("64MiB"), true),
        (json!("1.5gb"), true),
        (json!(1), true),
        (json!("64X"), false),
        (json!("0"), false),
        (json!("8000000TiB"), false),
        (json!(1.5), false),
    ] {
        assert_eq!(check_value("credit_bytes", &value).is_ok(), holds, "{value}");
    }
    assert!(check_value("preferred_base", &json!("256")).is_err());
}

#[test]
fn known_settings_are_those_of_the_connector() {
    let source = include_str!("../../../python/kvasir/vllm/settings.py");
    let (_, table) = source.split_once("\n_KEYS").unwrap();
    let mut keys: Vec<&str> = table
        .split("\"kvasir.")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap())
        .collect();
    keys.sort_unstable();
    assert_eq!(keys, KNOWN);
    for key in KNOWN {
        let known = ["1", "all", "true", "ring"]
            .iter()
            .any(|value| read_value(key, value).is_ok());
        assert!(known, "{key}");
    }
}

#[test]
fn a_socket_path_has_to_fit_its_address() {
    let path = |bytes: usize| format!("/{}", "s".repeat(bytes - 1));
    let named = |bytes| VllmArgs {
        role: Role::Both,
        socket: Some(path(bytes).into()),
        settings: Vec::new(),
    };
    assert!(document(&named(107)).is_ok());
    assert!(document(&named(108)).unwrap_err().contains("108 bytes"));
    assert!(document(&args(&[&format!("socket={}", path(107))])).is_ok());
    assert!(document(&args(&[&format!("socket={}", path(108))])).is_err());
}
