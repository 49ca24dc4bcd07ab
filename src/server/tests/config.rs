//! Tests of the settings' forms and files.

use super::*;

fn file(text: &str) -> Result<Settings, SettingsError> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    Settings::from_file(file.path())
}

fn resolve(settings: Settings) -> Result<Config, SettingsError> {
    Config::resolve(settings, || "/run/default.sock".into())
}

#[test]
fn a_file_can_hold_every_setting_and_the_effective_one_reads_back() {
    let text = "socket = \"/run/k.sock\"\npool-size = \"1GiB\"\nhuge-pages = \"try\"\nnuma = \"0,1\"\nchunk-size = \"auto\"\n\
                chunk-size-policy = \"negotiate\"\nchunk-scope = \"model\"\nfleet-file = \"/run/fleet\"\nmax-clients = 8\nlog-level = \"debug\"\n";
    let settings = file(text).unwrap();
    let config = resolve(settings.clone()).unwrap();
    assert_eq!(config.to_toml().unwrap(), text);
    assert_eq!(file(text).unwrap(), settings);
    assert_eq!(
        file("pool-size = 65536").unwrap().pool_size,
        Some(ByteSize(65536))
    );
    assert_eq!(file("numa = 1").unwrap().numa, Some(Numa::Nodes(vec![1])));
}

#[test]
fn unknown_keys_and_values_are_refused_by_name() {
    for (text, named) in [
        ("pool_size = 1", "pool_size"),
        ("poolsize = 1", "poolsize"),
        ("[server]\nsocket = 'x'", "server"),
        ("chunk-size-policy = 'grow'", "grow"),
        ("chunk-scope = 'engine'", "engine"),
        ("pool-size = '4PB'", "4PB"),
        ("huge-pages = 'yes'", "yes"),
        ("numa = 'near'", "near"),
        ("numa = -1", "numa"),
        ("chunk-size = -1", "chunk-size"),
    ] {
        let error = file(text).unwrap_err().to_string();
        assert!(error.contains(named), "{text}: {error}");
    }
}

#[test]
fn what_is_above_wins() {
    let flags = Settings {
        pool_size: Some(ByteSize(1 << 20)),
        ..Settings::default()
    };
    let file = Settings {
        pool_size: Some(ByteSize(1 << 30)),
        max_clients: Some(3),
        ..Settings::default()
    };
    let config = resolve(flags.over(file)).unwrap();
    assert_eq!((config.pool_size.0, config.max_clients), (1 << 20, 3));
    assert_eq!(config.socket, PathBuf::from("/run/default.sock"));
}

#[test]
fn numbers_that_cannot_work_are_refused() {
    let chunk = |minimum, policy| {
        resolve(Settings {
            chunk_size: Some(ChunkSize(minimum)),
            chunk_size_policy: Some(policy),
            ..Settings::default()
        })
    };
    let zero = chunk(Minimum::Tokens(0), ChunkSizePolicy::Negotiate);
    assert!(matches!(
        zero,
        Err(SettingsError::ChunkSize {
            source: ConfigError::Zero,
            ..
        })
    ));
    let fixed = chunk(Minimum::Auto, ChunkSizePolicy::Fixed);
    assert!(matches!(
        fixed,
        Err(SettingsError::ChunkSize {
            source: ConfigError::AutoFixed,
            ..
        })
    ));
    let clients = resolve(Settings {
        max_clients: Some(0),
        ..Settings::default()
    });
    assert!(matches!(clients, Err(SettingsError::Range { value: 0, .. })));
    let pool = resolve(Settings {
        pool_size: Some(ByteSize(65535)),
        ..Settings::default()
    });
    assert!(matches!(
        pool,
        Err(SettingsError::Size {
            value: 65535,
            min: 65536,
            ..
        })
    ));
}

#[test]
fn an_error_names_the_setting_as_it_was_set() {
    let error = resolve(Settings {
        pool_size: Some(ByteSize(1024)),
        ..Settings::default()
    });
    let error = error.unwrap_err().named(|flag| {
        assert_eq!(flag, "--pool-size");
        "KVASIR_POOL_SIZE".to_owned()
    });
    let said = error.to_string();
    assert_eq!(
        said,
        "KVASIR_POOL_SIZE is 1.0 KiB; it has to be between 64.0 KiB and 256.0 TiB"
    );
}
