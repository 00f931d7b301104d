import java.io.*;
import java.net.URI;
import java.net.http.*;
import java.nio.file.*;
import java.security.*;
import java.security.cert.CertificateFactory;
import java.util.HexFormat;
import java.util.concurrent.Flow;
import javax.net.ssl.*;

/** Client HTTP_1_1|HTTP_2 METHOD URL: a client by the JDK, as client.js. */
public class Client {
  static String env(String name) { return System.getenv().getOrDefault(name, ""); }

  public static void main(String[] a) throws Exception {
    KeyStore keys = KeyStore.getInstance("PKCS12"), trust = KeyStore.getInstance("PKCS12");
    try (InputStream in = Files.newInputStream(Path.of(env("STORE")))) { keys.load(in, "x".toCharArray()); }
    trust.load(null, null);
    try (InputStream in = Files.newInputStream(Path.of(env("CA")))) {
      int n = 0;
      for (var c : CertificateFactory.getInstance("X.509").generateCertificates(in)) trust.setCertificateEntry("ca" + n++, c);
    }
    KeyManagerFactory k = KeyManagerFactory.getInstance("SunX509");
    k.init(keys, "x".toCharArray());
    TrustManagerFactory t = TrustManagerFactory.getInstance("PKIX");
    t.init(trust);
    SSLContext tls = SSLContext.getInstance("TLS");
    tls.init(k.getKeyManagers(), t.getTrustManagers(), null);
    HttpClient client = HttpClient.newBuilder().sslContext(tls).version(HttpClient.Version.valueOf(a[0])).build();

    byte[] whole = "y".repeat(1 << 20).getBytes();
    String form = env("FORM");
    HttpRequest.BodyPublisher body = HttpRequest.BodyPublishers.noBody();
    if (form.equals("declared")) body = HttpRequest.BodyPublishers.ofByteArray(whole);
    if (form.equals("chunked")) body = HttpRequest.BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(whole));
    if (form.equals("slow")) body = HttpRequest.BodyPublishers.fromPublisher(HttpRequest.BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(whole) {
      @Override public synchronized int read(byte[] b, int off, int len) {
        try { Thread.sleep(170); } catch (InterruptedException e) { return -1; } // 64 reads of 16 KiB
        return super.read(b, off, len);
      }
    }), whole.length);
    HttpRequest.Builder q = HttpRequest.newBuilder(URI.create(a[2])).method(a[1], body).header("Content-Type", "application/json");
    if (!env("EXPECT").isEmpty()) q.expectContinue(true);
    if (env("FIELDS").length() > 2) for (String f : env("FIELDS").replaceAll("[{}\"]", "").split(",")) q.header(f.split(":")[0], f.split(":")[1]);
    int status = 0;
    long bytes = 0;
    String end = "whole";
    MessageDigest hash = MessageDigest.getInstance("SHA-256");
    try {
      HttpResponse<InputStream> r = client.send(q.build(), HttpResponse.BodyHandlers.ofInputStream());
      status = r.statusCode();
      byte[] b = new byte[65536];
      for (int n; (n = r.body().read(b)) > 0;) {
        if (bytes == 0) {
          System.out.println("begun");
          if (!env("PAUSE").isEmpty()) Thread.sleep(1000 * Long.parseLong(env("PAUSE")));
        }
        hash.update(b, 0, n);
        bytes += n;
      }
    } catch (IOException e) {
      end = e.toString();
    }
    System.out.println(status + " bytes=" + bytes + " sha=" + HexFormat.of().formatHex(hash.digest()).substring(0, 12) + " end=" + end);
    System.exit(0);
  }
}
