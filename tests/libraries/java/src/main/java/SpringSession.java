import java.time.Duration;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import org.springframework.context.ApplicationEvent;
import org.springframework.data.redis.connection.RedisStandaloneConfiguration;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.data.redis.core.RedisTemplate;
import org.springframework.data.redis.listener.ChannelTopic;
import org.springframework.data.redis.listener.PatternTopic;
import org.springframework.data.redis.listener.RedisMessageListenerContainer;
import org.springframework.data.redis.serializer.RedisSerializer;
import org.springframework.session.FindByIndexNameSessionRepository;
import org.springframework.session.Session;
import org.springframework.session.SessionRepository;
import org.springframework.session.data.redis.RedisIndexedSessionRepository;
import org.springframework.session.data.redis.RedisSessionRepository;
import org.springframework.session.data.redis.config.ConfigureNotifyKeyspaceEventsAction;

/** Spring Session: both repositories; the indexed one learns of expiry from events of keys. */
final class SpringSession {
    public static void main(String[] arguments) {
        Did.main(() -> {
            var factory = new LettuceConnectionFactory(new RedisStandaloneConfiguration(Did.HOST, Did.PORT));
            factory.afterPropertiesSet();
            factory.start();
            RedisTemplate<String, Object> template = new RedisTemplate<>();
            template.setKeySerializer(RedisSerializer.string());
            template.setHashKeySerializer(RedisSerializer.string());
            template.setConnectionFactory(factory);
            template.afterPropertiesSet();
            var simple = new RedisSessionRepository(template);
            simple.setDefaultMaxInactiveInterval(Duration.ofSeconds(1));
            simple(simple);
            Did.did("sessions: create, read, change the id, delete, expire");
            indexed(factory, template);
            Did.did("indexed sessions: found by user; events of creation, deletion, expiry");
        });
    }

    private static <S extends Session> void simple(SessionRepository<S> sessions) throws Exception {
        S session = sessions.createSession();
        session.setAttribute("user", "ann");
        sessions.save(session);
        S found = sessions.findById(session.getId());
        Did.same("ann", found.getAttribute("user"));
        String old = found.getId();
        found.changeSessionId();
        found.setAttribute("more", List.of(1, 2));
        sessions.save(found);
        Did.check(sessions.findById(old) == null, "the old id is still known");
        Did.same(List.of(1, 2), sessions.findById(found.getId()).getAttribute("more"));
        sessions.deleteById(found.getId());
        Did.check(sessions.findById(found.getId()) == null, "not deleted");
        S late = sessions.createSession();
        sessions.save(late);
        Thread.sleep(1300);
        Did.check(sessions.findById(late.getId()) == null, "the session did not expire");
    }

    private static void indexed(LettuceConnectionFactory factory, RedisTemplate<String, Object> template)
            throws Exception {
        try (var connection = factory.getConnection()) {
            new ConfigureNotifyKeyspaceEventsAction().configure(connection);
        }
        var sessions = new RedisIndexedSessionRepository(template);
        sessions.setDefaultMaxInactiveInterval(Duration.ofSeconds(2));
        sessions.setDefaultSerializer(RedisSerializer.java());
        List<String> events = new CopyOnWriteArrayList<>();
        sessions.setApplicationEventPublisher(event -> events.add(event.getClass().getSimpleName()));
        var container = new RedisMessageListenerContainer();
        container.setConnectionFactory(factory);
        container.addMessageListener(sessions, List.of(
            new ChannelTopic(sessions.getSessionDeletedChannel()),
            new ChannelTopic(sessions.getSessionExpiredChannel()),
            new PatternTopic(sessions.getSessionCreatedChannelPrefix() + "*")));
        container.afterPropertiesSet();
        container.start();

        var first = save(sessions);
        var second = save(sessions);
        Did.same(2, sessions.findByPrincipalName("ann").size());
        var two = List.of("SessionCreatedEvent", "SessionCreatedEvent");
        Did.waitUntil("two events of creation", () -> events.equals(two));
        events.clear();
        sessions.deleteById(first);
        Did.waitUntil("an event of deletion", () -> events.equals(List.of("SessionDeletedEvent")));
        events.clear();
        Thread.sleep(2000);
        // The background task of the repository calls this each minute.
        Did.waitUntil("an event of expiry", () -> {
            sessions.cleanUpExpiredSessions();
            template.hasKey("spring:session:sessions:expires:" + second);
            return events.contains("SessionExpiredEvent");
        });
        Did.check(sessions.findById(second) == null, "the session did not expire");
        Did.waitUntil("the index is empty", () -> sessions.findByPrincipalName("ann").isEmpty());
        container.stop();
    }

    private static String save(RedisIndexedSessionRepository sessions) {
        var session = sessions.createSession();
        session.setAttribute(FindByIndexNameSessionRepository.PRINCIPAL_NAME_INDEX_NAME, "ann");
        sessions.save(session);
        return session.getId();
    }
}
