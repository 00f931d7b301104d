import jakarta.servlet.http.*;
import java.io.*;
import org.apache.catalina.Context;
import org.apache.catalina.connector.Connector;
import org.apache.catalina.startup.Tomcat;
import org.apache.coyote.http2.Http2Protocol;
import org.apache.tomcat.util.net.*;

/** Server KIND PORT CERT KEY DIR: an extension server by Tomcat. KIND: http2 or https. */
public class Server {
  public static void main(String[] a) throws Exception {
    Tomcat t = new Tomcat();
    t.setBaseDir(a[4]);
    Connector c = new Connector("org.apache.coyote.http11.Http11NioProtocol");
    c.setPort(Integer.parseInt(a[1]));
    c.setScheme("https");
    c.setSecure(true);
    c.setMaxPostSize(-1);
    c.setProperty("SSLEnabled", "true");
    c.setProperty("address", "127.0.0.1");
    SSLHostConfig h = new SSLHostConfig();
    SSLHostConfigCertificate k = new SSLHostConfigCertificate(h, SSLHostConfigCertificate.Type.EC);
    k.setCertificateFile(a[2]);
    k.setCertificateKeyFile(a[3]);
    h.addCertificate(k);
    c.addSslHostConfig(h);
    if (a[0].equals("http2")) {
      Http2Protocol p = new Http2Protocol();
      p.setStreamReadTimeout(-1); // 20 s otherwise, which ends a slow reader's stream
      p.setStreamWriteTimeout(-1);
      p.setWriteTimeout(600_000); // of the connection, 5 s otherwise
      p.setOverheadDataThreshold(0); // its default ends connections with several uploads, all of Go's client: docs/evidence/interop.md
      p.setReadTimeout(600_000);
      p.setKeepAliveTimeout(600_000);
      c.addUpgradeProtocol(p);
    }
    t.setConnector(c);
    Context x = t.addContext("", a[4]);
    Tomcat.addServlet(x, "serve", new HttpServlet() {
      @Override protected void service(HttpServletRequest q, HttpServletResponse r) throws IOException {
        r.setContentType("application/json");
        OutputStream out = r.getOutputStream();
        String later = q.getQueryString() == null ? "" : q.getQueryString().replaceAll("^(.*&)?for=(\\d+).*$|.*", "$2");
        if (!q.getMethod().equals("GET")) {
          long bytes = 0;
          byte[] b = new byte[65536];
          for (int n; (n = q.getInputStream().read(b)) > 0;) bytes += n;
          pause(later);
          r.setStatus(201);
          out.write(("{\"bytes\":" + bytes + "}").getBytes());
        } else if (q.getParameter("watch") != null) {
          out.write("{\"n\":1}\n".getBytes());
          r.flushBuffer();
          pause(later);
          out.write("{\"n\":2}\n".getBytes());
        } else if (q.getParameter("size") != null) {
          out.write("x".repeat(Integer.parseInt(q.getParameter("size"))).getBytes());
        } else {
          out.write(("{\"kind\":\"APIResourceList\",\"apiVersion\":\"v1\",\"groupVersion\":\"" + q.getRequestURI().replace("/apis/", "") + "\",\"resources\":[]}").getBytes());
        }
      }
    });
    x.addServletMappingDecoded("/*", "serve");
    t.start();
    t.getServer().await();
  }

  static void pause(String seconds) throws IOException {
    try {
      if (!seconds.isEmpty()) Thread.sleep(1000 * Long.parseLong(seconds));
    } catch (InterruptedException e) {
      throw new IOException(e);
    }
  }
}
