//! Settings: no text makes a setting panic, and the shown text of an accepted value gives the same
//! value.
#![no_main]

use duramen_config::{SETTINGS, ServerConfig, Setting};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((which, text)) = data.split_first() else {
        return;
    };
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    if let Some(nearest) = Setting::nearest(text) {
        assert!(Setting::find(nearest).is_some());
    }
    let setting = &SETTINGS[usize::from(*which) % SETTINGS.len()];
    let mut config = ServerConfig::default();
    if setting.apply(&mut config, text).is_ok() {
        let mut again = ServerConfig::default();
        setting
            .apply(&mut again, &setting.show(&config))
            .expect("what is shown can be set");
        assert_eq!(again, config);
    }
});
