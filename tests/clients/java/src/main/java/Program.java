import java.util.Map;
import java.util.Objects;

/** Common parts of the programs of tests/clients/README.md. */
abstract class Program {
    interface Scenario {
        void run() throws Exception;
    }

    /** The scenarios by name, in the order in which they run. */
    abstract Map<String, Scenario> scenarios();

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
