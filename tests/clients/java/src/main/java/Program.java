import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Objects;

/** Common parts of the programs of tests/clients/README.md. */
abstract class Program {
    interface Scenario {
        void run() throws Exception;
    }

    /** A program with a connection to the server. */
    interface Opening {
        Program open(String host, int port, String resp) throws Exception;
    }

    abstract void connect() throws Exception;

    abstract void strings() throws Exception;

    abstract void pipeline() throws Exception;

    abstract void transaction() throws Exception;

    abstract void watch() throws Exception;

    abstract void big() throws Exception;

    abstract void binary() throws Exception;

    abstract void expiry() throws Exception;

    abstract void scan() throws Exception;

    abstract void errors() throws Exception;

    abstract void concurrent() throws Exception;

    abstract void reconnect() throws Exception;

    abstract void denied() throws Exception;

    /** The scenarios by name, in the order in which they run. */
    private Map<String, Scenario> scenarios() {
        Map<String, Scenario> scenarios = new LinkedHashMap<>();
        scenarios.put("connect", this::connect);
        scenarios.put("strings", this::strings);
        scenarios.put("pipeline", this::pipeline);
        scenarios.put("transaction", this::transaction);
        scenarios.put("watch", this::watch);
        scenarios.put("big", this::big);
        scenarios.put("binary", this::binary);
        scenarios.put("expiry", this::expiry);
        scenarios.put("scan", this::scan);
        scenarios.put("errors", this::errors);
        scenarios.put("concurrent", this::concurrent);
        scenarios.put("reconnect", this::reconnect);
        if (System.getenv("CLIENT_USER") != null) {
            scenarios.put("denied", this::denied);
        }
        return scenarios;
    }

    /** Runs all scenarios; `arguments` are host, port and version of RESP. */
    static void run(String[] arguments, Opening opening) throws Exception {
        String host = arguments[0];
        int port = Integer.parseInt(arguments[1]);
        if (System.getenv("CLIENT_REFUSED") != null) {
            report("connect", () -> opening.open(host, port, arguments[2]).connect());
        } else {
            opening.open(host, port, arguments[2]).scenarios().forEach(Program::report);
        }
    }

    static void check(boolean condition, String what) {
        if (!condition) {
            throw new AssertionError(what);
        }
    }

    static void equal(Object found, Object wanted) {
        check(Objects.equals(found, wanted), "found " + found + ", wanted " + wanted);
    }

    /** All 256 bytes, repeated. */
    static byte[] everyByte(int times) {
        byte[] every = new byte[256 * times];
        for (int i = 0; i < every.length; i++) {
            every[i] = (byte) i;
        }
        return every;
    }

    /** Runs one scenario and prints its result. */
    static void report(String name, Scenario scenario) {
        try {
            scenario.run();
            System.out.println("pass " + name);
        } catch (Throwable error) {
            StringBuilder text = new StringBuilder(String.valueOf(error));
            for (Throwable cause = error.getCause(); cause != null; cause = cause.getCause()) {
                text.append("; ").append(cause);
            }
            System.out.println("fail " + name + " " + text.substring(0, Math.min(500, text.length())).replace('\n', ' '));
        }
    }
}
